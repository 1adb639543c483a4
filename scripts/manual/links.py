"""Checks the links of a built book. links.py BOOK SOURCES REPOSITORY

A link within the book leads to a page and, if it names one, an element with that id. One that leads out of it leads to a file
beside the sources; on the site it would lead nowhere, so it gets the file's address in the repository. Addresses of other sites are
not asked."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        for name in ("id", "name"):
            if attributes.get(name):
                self.ids.add(attributes[name])
        for name in ("href", "src"):
            if attributes.get(name):
                self.links.append(attributes[name])


def fault(book, sources, pages, page, link):
    """Returns what is wrong with a link, if anything."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    path = unquote(parts.path)
    target = (page.parent / path).resolve() if path else page
    if book in target.parents:
        if not target.is_file():
            return "no such file in the book"
        if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
            return "no such heading"
        return None
    return None if outside(book, sources, page, path) else "no such file in the tree"


def outside(book, sources, page, path):
    """Returns the file of the tree that a link out of the book leads to, if there is one."""
    source = (sources / page.parent.relative_to(book) / path).resolve()
    # mdBook takes each page for one of the book.
    return next((file for file in (source, source.with_suffix(".md")) if file.exists()), None)


def lead_to_repository(book, sources, repository, page, read):
    """Gives the links of a page that lead out of the book addresses in the repository."""
    text = page.read_text()
    for link in set(read.links):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc or not parts.path or book in (page.parent / unquote(parts.path)).resolve().parents:
            continue
        file = outside(book, sources, page, unquote(parts.path))
        if file:
            address = f"{repository}/blob/main/{file.relative_to(sources.parent)}" + (f"#{parts.fragment}" if parts.fragment else "")
            text = text.replace(f'href="{link}"', f'href="{address}"')
    page.write_text(text)


def main(book, sources, repository):
    book, sources = Path(book).resolve(), Path(sources).resolve()
    # The page for printing has all others, and their links as they are; a missing page has any address.
    pages = {path: Page(path) for path in book.rglob("*.html") if path.name not in ("print.html", "404.html")}
    links = [(page, link) for page, read in pages.items() for link in read.links]
    faults = [(page, link, why) for page, link in links if (why := fault(book, sources, pages, page, link))]
    for page, link, why in faults:
        print(f"{page.relative_to(book)}: {link}: {why}")
    for page, read in pages.items():
        lead_to_repository(book, sources, repository, page, read)
    print(f"manual: {len(pages)} pages, {len(links)} links, {len(faults)} faults")
    sys.exit(bool(faults) or len(links) < len(pages))


main(*sys.argv[1:])

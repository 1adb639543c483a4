// Keeps a page up to date. Without it, pages are as true as when they were loaded.
"use strict";
(() => {
  // A command can be copied where the browser lets pages do so; else it is selected as a whole.
  const finish = () => {
    for (const line of document.querySelectorAll("[data-copy]")) {
      if (!navigator.clipboard) break;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.textContent = "Copy the command";
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(line.textContent);
        button.textContent = "Copied";
      });
      line.after(button);
    }
    // The newest line is the last; a plan is read from its beginning.
    for (const output of document.querySelectorAll(".output.newest")) output.scrollTop = output.scrollHeight;
  };
  finish();
  const main = document.querySelector("main[data-live]");
  if (!main || !window.EventSource) return;
  const said = document.getElementById("said");
  const say = (text) => { if (said.textContent !== text) said.textContent = text; };
  // What people who do not see the page have to know of a change.
  const words = () => [...main.querySelectorAll("h1 .badge, h2 .badge, h3 .badge")]
    .map((badge) => badge.parentElement.textContent.trim()).join("; ");
  // Where the keyboard is, so that it stays there.
  const place = (element) => {
    const all = [...main.querySelectorAll("a, button, input, select, summary, [tabindex]")];
    return all.indexOf(element);
  };
  // What somebody has typed meanwhile stays as well.
  const typed = () => [...main.querySelectorAll("input[id]")]
    .filter((input) => input.value !== input.defaultValue).map((input) => [input.id, input.value]);
  const show = (content) => {
    const before = words();
    const at = place(document.activeElement);
    const kept = typed();
    main.innerHTML = content;
    for (const [id, value] of kept) {
      const input = document.getElementById(id);
      if (input) input.value = value;
    }
    finish();
    if (at >= 0) {
      const all = main.querySelectorAll("a, button, input, select, summary, [tabindex]");
      (all[Math.min(at, all.length - 1)] || main).focus({ preventScroll: true });
    }
    const now = words();
    if (now !== before) say("Changed: " + now);
  };
  // Only while the page is seen: a browser has few connections for all its windows, and disks are asked for nobody.
  let source = null;
  let finished = false;
  const close = () => {
    if (source) source.close();
    source = null;
  };
  const open = () => {
    if (source || finished || document.hidden) return;
    source = new EventSource(main.dataset.live);
    source.addEventListener("content", (event) => show(event.data));
    // The page has all that it waited for.
    source.addEventListener("done", () => { finished = true; close(); });
    source.addEventListener("over", () => { close(); location.reload(); });
    source.addEventListener("error", () => {
      document.body.classList.add("stale");
      say("The connection is lost. What is shown may be old.");
    });
    source.addEventListener("open", () => {
      if (document.body.classList.contains("stale")) {
        document.body.classList.remove("stale");
        say("The connection is back.");
      }
    });
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
})();

"""Seeds a directory, and tells every client that asks its tracker where. seeder.py DIRECTORY TORRENT ADDRESS

Writes the torrent once clients can use it."""

import contextlib
import http.server
import os
import socket
import sys

import libtorrent

PEER_PORT = 6881
PIECE = 64 * 1024


class Tracker(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        peer = socket.inet_aton(self.server.server_address[0]) + PEER_PORT.to_bytes(2, "big")
        answer = libtorrent.bencode({b"interval": 5, b"complete": 1, b"incomplete": 0, b"peers": peer})
        # A client that has ended asks for nothing any more.
        with contextlib.suppress(ConnectionError):
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    def log_message(self, *_):
        pass


def main(directory, torrent, address):
    files = libtorrent.file_storage()
    libtorrent.add_files(files, directory)
    made = libtorrent.create_torrent(files, PIECE, libtorrent.create_torrent.v1_only)
    libtorrent.set_piece_hashes(made, os.path.dirname(directory))
    # Without the tracker, of which the seeder would hear of itself.
    seeded = libtorrent.torrent_info(made.generate())
    session = libtorrent.session(
        {
            "listen_interfaces": "%s:%d" % (address, PEER_PORT),
            "enable_dht": False,
            "enable_lsd": False,
            # Slow enough for the player to see files that are not complete.
            "upload_rate_limit": 30_000_000,
            "rate_limit_ip_overhead": False,
        }
    )
    # Local addresses are exempt from limits otherwise.
    everybody = libtorrent.ip_filter()
    everybody.add_rule("0.0.0.0", "255.255.255.255", 1 << libtorrent.session.global_peer_class_id)
    session.set_peer_class_filter(everybody)
    session.add_torrent({"ti": seeded, "save_path": os.path.dirname(directory)})
    server = http.server.ThreadingHTTPServer((address, 6969), Tracker)
    made.add_tracker("http://%s:6969/announce" % address)
    with open(torrent, "wb") as file:
        file.write(libtorrent.bencode(made.generate()))
    server.serve_forever()


main(*sys.argv[1:])

"""Downloads a torrent as qBittorrent and Deluge do. libtorrent_client.py TORRENT DIRECTORY allocate|sparse"""

import sys
import time

import libtorrent


def main(torrent, directory, how):
    session = libtorrent.session(
        {"listen_interfaces": "0.0.0.0:6890", "enable_dht": False, "enable_lsd": False}
    )
    mode = libtorrent.storage_mode_t.names["storage_mode_" + how]
    download = session.add_torrent(
        {"ti": libtorrent.torrent_info(torrent), "save_path": directory, "storage_mode": mode}
    )
    while not download.status().is_seeding:
        if download.status().errc.value() != 0:
            sys.exit(download.status().errc.message())
        time.sleep(0.05)
    # Reads all of it again, and checks it.
    download.force_recheck()
    time.sleep(0.5)
    while download.status().state != libtorrent.torrent_status.seeding:
        time.sleep(0.05)
    if download.status().progress != 1:
        sys.exit("what was read back is not what was written")


main(*sys.argv[1:])

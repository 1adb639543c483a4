# shellcheck shell=bash disable=SC2034,SC2086
# Torrent clients: each allocates files and fills them out of order, beside a player that reads what is there. A stand-in
# allocates them in all the ways that a client may.

packages=(python3 python3-libtorrent aria2 transmission-daemon transmission-cli)

readonly TORRENT=/root/films.torrent
# An address of the loopback interface, for clients believe no tracker that names 127.0.0.1.
readonly ADDRESS=10.0.0.1

# beside_player DIRECTORY COMMAND...: runs a command that makes a copy of /root/films there.
beside_player() {
    local dir=$1 player
    shift
    python3 /root/neighbours/common/player.py "$dir" /root/films &
    player=$!
    "$@"
    diff -r /root/films "$dir"
    kill "$player"
    wait "$player" || fail "the player"
    # After the client has ended.
    diff -r /root/films "$dir"
    rm -r "$dir"
}

# stand_in DIRECTORY
stand_in() {
    local how
    for how in nothing truncate fallocate keep-size zeros mapped; do
        step "$1, a stand-in: $how"
        mkdir "$1/films"
        beside_player "$1/films" python3 /root/neighbours/common/downloader.py "$1/films" /root/films $how
    done
}

# aria2 DIRECTORY
aria2() {
    local how
    for how in none prealloc trunc falloc; do
        step "$1, aria2: $how"
        beside_player "$1/films" quietly aria2c --dir="$1" --file-allocation=$how --seed-time=0 --listen-port=6891 \
            --enable-dht=false --bt-enable-lpd=false $TORRENT
    done
}

# libtorrent DIRECTORY
libtorrent() {
    local how
    for how in allocate sparse; do
        step "$1, libtorrent: $how"
        beside_player "$1/films" python3 /root/neighbours/common/libtorrent_client.py $TORRENT "$1" $how
    done
}

films_are_here() { diff -r /root/films "$1"; }

# transmission DIRECTORY: files are moved into place when they are whole.
transmission() {
    local how daemon
    for how in 0 1 2; do
        step "$1, transmission: preallocation $how"
        mkdir -p /root/transmission
        cat >/root/transmission/settings.json <<-END
			{"preallocation": $how, "download-dir": "$1", "incomplete-dir": "$1/.part", "incomplete-dir-enabled": true,
			 "rename-partial-files": true, "peer-port": 6892, "dht-enabled": false, "lpd-enabled": false,
			 "port-forwarding-enabled": false, "bind-address-ipv4": "$ADDRESS", "rpc-bind-address": "127.0.0.1", "rpc-port": 9091}
		END
        transmission-daemon --foreground --config-dir /root/transmission >/root/transmission.log 2>&1 &
        daemon=$!
        until_true transmission-remote 127.0.0.1:9091 --list
        quietly transmission-remote 127.0.0.1:9091 --add $TORRENT
        until_true films_are_here "$1/films"
        quietly transmission-remote 127.0.0.1:9091 --exit
        until_true is_gone $daemon
        films_are_here "$1/films"
        rm -r "$1/films" /root/transmission
    done
    rm -rf "$1/.part"
}

# over DIRECTORY
over() {
    stand_in "$1"
    aria2 "$1"
    libtorrent "$1"
    transmission "$1"
}

run() {
    local i seeder
    the_pool
    mkdir /root/films
    # No block in it is empty: an empty one has not arrived yet.
    for i in 1 2 3; do head -c $((i * 15000000 + i)) /dev/urandom >/root/films/film$i; done
    ip address add $ADDRESS/8 dev lo
    python3 /root/neighbours/common/seeder.py /root/films $TORRENT $ADDRESS &
    seeder=$!
    until_true test -s $TORRENT
    over "$PLAIN"
    over "$POOL"
    end $seeder
}

# shellcheck shell=bash disable=SC2034,SC2086
# What a torrent client does: it allocates files and fills them out of order, beside a player that reads what is there.

packages=(python3)

# over DIRECTORY
over() {
    local dir=$1/downloads how player
    for how in nothing truncate fallocate keep-size zeros mapped; do
        step "$dir, allocated by: $how"
        mkdir "$dir"
        python3 /root/neighbours/common/player.py "$dir" /root/films &
        player=$!
        python3 /root/neighbours/common/downloader.py "$dir" /root/films $how
        kill "$player"
        wait "$player" || fail "the player"
        diff -r /root/films "$dir"
        rm -r "$dir"
    done
}

run() {
    local i
    the_pool
    mkdir /root/films
    # No block in it is empty: an empty one has not arrived yet.
    for i in 1 2 3; do head -c $((i * 15000000 + i)) /dev/urandom >/root/films/film$i; done
    over "$PLAIN"
    over "$POOL"
}

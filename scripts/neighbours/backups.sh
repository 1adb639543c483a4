# shellcheck shell=bash disable=SC2034,SC2086
# restic and borg with their repositories on the pool, backing up a tree on the pool: a backup that is killed, a check of all data,
# a restore that is compared.

packages=(restic borgbackup attr acl)

# tree DIRECTORY: files of many sizes, holes, links, names, attributes.
tree() {
    local i
    mkdir -p "$1/deep/er"
    for i in {1..300}; do head -c $((i * i * 7)) /dev/urandom >"$1/deep/file$i"; done
    head -c 60M /dev/urandom >"$1/big"
    truncate -s 50M "$1/hole" && echo end >>"$1/hole"
    ln "$1/big" "$1/deep/er/linked"
    ln -s ../big "$1/deep/symlink"
    mkfifo "$1/fifo"
    touch "$1/ünïcode" "$1/$(printf 'new\nline')"
    setfattr -n user.note -v "a note" "$1/big"
    setfacl -m u:daemon:r "$1/deep/file1"
    chmod 2750 "$1/deep"
    touch -d "1999-12-31 23:59:59.123456789" "$1/deep/file2"
    chown -h 1234:5678 "$1/deep/file3" "$1/deep/symlink"
}

# told DIRECTORY: all that a restore has to bring back.
told() {
    # A directory on several disks has no number of links.
    (cd "$1" && find . -printf '%P %y %m %U %G %l %T@ ' \( -type d -printf '\n' -o -printf '%n %s\n' \) | sort)
    (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum)
    (cd "$1" && find . -type f -print0 | sort -z | xargs -0 getfattr -h -d -m '^user\.')
}

same() { diff <(told "$1") <(told "$2"); }

# killed COMMAND...: kills it after a while in which it cannot have finished.
killed() {
    "$@" >/dev/null 2>&1 &
    sleep 0.7
    kill -KILL $!
    wait $! 2>/dev/null || true
}

restic_on() {
    export RESTIC_PASSWORD=secret RESTIC_REPOSITORY=$1/restic RESTIC_CACHE_DIR=$1/restic-cache
    quietly restic init
    killed restic backup "$1/tree"
    quietly restic unlock
    quietly restic backup "$1/tree"
    echo more >>"$1/tree/big"
    rm "$1/tree/deep/file9"
    quietly restic backup "$1/tree"
    quietly restic check --read-data
    quietly restic restore latest --target "$1/back"
    same "$1/tree" "$1/back$1/tree"
    quietly restic forget --keep-last 1 --prune
    quietly restic check --read-data
    rm -r "$1/back" "$1/restic" "$1/restic-cache"
}

borg_on() {
    export BORG_PASSPHRASE=secret BORG_REPO=$1/borg BORG_BASE_DIR=$1/borg-base BORG_RELOCATED_REPO_ACCESS_IS_OK=yes
    quietly borg init --encryption=repokey
    killed borg create ::killed "$1/tree"
    quietly borg break-lock
    quietly borg create ::first "$1/tree"
    echo more >>"$1/tree/big"
    quietly borg create ::second "$1/tree"
    quietly borg check --verify-data
    mkdir "$1/back"
    (cd "$1/back" && quietly borg extract ::second)
    same "$1/tree" "$1/back$1/tree"
    quietly borg delete ::first
    quietly borg compact
    quietly borg check --verify-data
    rm -r "$1/back" "$1/borg" "$1/borg-base"
}

run() {
    local on
    the_pool
    for on in $PLAIN $POOL; do
        tree "$on/tree"
        step "restic on $on"
        restic_on "$on"
        step "borg on $on"
        borg_on "$on"
    done
}

# shellcheck shell=bash disable=SC2034,SC2086
# SQLite on the pool: readers beside a writer with each kind of journal; kill -9 of the writer; a database that is backed up
# while it is written.

packages=(python3 sqlite3)

run() {
    local on journal copy
    the_pool
    for on in $PLAIN $POOL; do
        for journal in delete truncate persist wal; do
            step "$on $journal"
            mkdir "$on/sqlite"
            python3 /root/neighbours/common/sqlite_load.py "$on/sqlite/db" "$journal"
            sqlite3 "$on/sqlite/db" ".backup $on/sqlite/copy" "vacuum into '$on/sqlite/small'"
            for copy in db copy small; do sqlite3 "$on/sqlite/$copy" .dump >/root/$copy; done
            (($(wc -l </root/db) > 100)) || fail "the dump is empty"
            cmp /root/db /root/copy
            cmp /root/db /root/small
            rm -r "$on/sqlite"
        done
    done
}

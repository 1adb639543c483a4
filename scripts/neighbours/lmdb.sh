# shellcheck shell=bash disable=SC2034,SC2086
# LMDB on the pool: readers that map the file beside a writer, with each way of writing; kill -9 of the writer.

packages=(python3 python3-lmdb lmdb-utils)

# dump DIRECTORY: without what belongs to the file and not to what is in it.
dump() { mdb_dump "$1" | grep -v '^mapsize\|^maxreaders'; }

run() {
    local on how
    the_pool
    for on in $PLAIN $POOL; do
        for how in write writemap; do
            step "$on $how"
            mkdir "$on/lmdb"
            python3 /root/neighbours/common/lmdb_load.py "$on/lmdb" "$how"
            quietly mdb_stat -e -f -f -r "$on/lmdb"
            mkdir "$on/copy"
            quietly mdb_copy -c "$on/lmdb" "$on/copy"
            dump "$on/lmdb" >/root/dump
            dump "$on/copy" >/root/copied
            (($(wc -l </root/dump) > 100)) || fail "the dump is empty"
            cmp /root/dump /root/copied
            rm -r "$on/lmdb" "$on/copy"
        done
    done
}

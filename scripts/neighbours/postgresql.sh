# shellcheck shell=bash disable=SC2034,SC2086
# PostgreSQL with its data on the pool: pgbench, kill -9 of the server at work, recovery, every page and index checked.

packages=(postgresql)

pg=$(echo /usr/lib/postgresql/*/bin)

as_postgres() { setpriv --reuid=postgres --regid=postgres --init-groups env HOME=/tmp PGHOST=127.0.0.1 "$@"; }
sql() { as_postgres psql -X -A -t -v ON_ERROR_STOP=1 -c "$1" "${2:-bench}"; }
start() { quietly as_postgres "$pg/pg_ctl" -D "$1" -w -t 300 -l "$1.log" start; }

# What pgbench added to accounts it added to tellers and branches, and it wrote it into the history.
consistent() {
    local sums
    sums=$(sql "select count(distinct s) from (select sum(abalance) s from pgbench_accounts union all select sum(tbalance) from pgbench_tellers
        union all select sum(bbalance) from pgbench_branches union all select sum(delta) from pgbench_history) as sums")
    [[ $sums == 1 ]] || fail "the sums of the tables differ"
}

# over DIRECTORY SETTING...
over() {
    local data=$1/postgres bench round acknowledged stored setting
    shift
    step "$data ${*:-default settings}"
    install -d -o postgres -g postgres -m 700 "$data"
    quietly as_postgres "$pg/initdb" -D "$data" --data-checksums --auth=trust --encoding=UTF8 --locale=C
    printf "listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\n" >>"$data/postgresql.conf"
    for setting in "$@"; do echo "$setting" >>"$data/postgresql.conf"; done
    install -o postgres -g postgres -m 600 /dev/null "$data.log"
    start "$data"
    quietly as_postgres createdb bench
    quietly as_postgres pgbench -i -q -s 5 --foreign-keys bench
    sql "create extension amcheck" >/dev/null
    # A tablespace is a symbolic link in the data directory.
    install -d -o postgres -g postgres -m 700 "$data.space"
    sql "create tablespace other location '$data.space'" >/dev/null
    sql "alter table pgbench_history set tablespace other" >/dev/null
    for round in 1 2 3; do
        install -d -o postgres -g postgres "/tmp/acknowledged$round"
        (cd "/tmp/acknowledged$round" && as_postgres pgbench -n -c 8 -j 2 -T 60 --log bench >/tmp/bench.log 2>&1) &
        bench=$!
        sleep 4
        kill -KILL "$(head -n 1 "$data/postmaster.pid")"
        wait "$bench" || true
        # Its processes end one after the other, and a server does not start beside them.
        # shellcheck disable=SC2046 # numbers
        until_true is_gone $(pgrep -u postgres || true)
        rm "$data/postmaster.pid"
        start "$data"
        consistent
    done
    acknowledged=$(cat /tmp/acknowledged?/* | wc -l)
    stored=$(sql "select count(*) from pgbench_history")
    ((acknowledged > 0 && acknowledged <= stored)) || fail "$acknowledged transactions were acknowledged, $stored are there"
    rm -r /tmp/acknowledged?
    sql "vacuum full" >/dev/null
    quietly as_postgres "$pg/pg_amcheck" --all --heapallindexed --parent-check --jobs=2
    consistent
    quietly as_postgres "$pg/pg_ctl" -D "$data" -w -m fast stop
    quietly as_postgres "$pg/pg_checksums" -D "$data" --check
    rm -r "$data" "$data.space" "$data.log"
}

run() {
    local on
    the_pool
    for on in $PLAIN $POOL; do
        over "$on"
        over "$on" "wal_sync_method = open_datasync" "debug_io_direct = 'data,wal,wal_init'"
    done
}

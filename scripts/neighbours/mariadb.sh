# shellcheck shell=bash disable=SC2034,SC2086
# MariaDB with its data on the pool: sysbench, kill -9 of the server at work, recovery, every table and page checked.

packages=(mariadb-server sysbench)


client() { mariadb --no-defaults --socket=/tmp/mariadb.sock --user=root "$@"; }

# start DATA OPTION...: sets `server`.
start() {
    mariadbd --no-defaults --user=mysql --datadir="$1" --socket=/tmp/mariadb.sock --skip-networking --log-error=/tmp/mariadb.log \
        --innodb-buffer-pool-size=64M "${@:2}" >/dev/null 2>&1 &
    server=$!
    until_true client -e "select 1"
}

bench() {
    sysbench oltp_read_write --db-driver=mysql --mysql-socket=/tmp/mariadb.sock --mysql-user=root --mysql-db=bench \
        --tables=4 --table-size=20000 --threads=4 --time=30 --mysql-ignore-errors=all "$@"
}

# over DIRECTORY OPTION...
over() {
    local data=$1/mariadb load writer round file
    shift
    step "$data ${*:-default settings}"
    install -d -o mysql -g mysql -m 700 "$data"
    quietly mariadb-install-db --no-defaults --user=mysql --datadir="$data" --skip-test-db
    start "$data" "$@"
    client -e "create database bench; create table bench.acknowledged (n int primary key)"
    quietly bench prepare
    for round in 1 2 3; do
        bench run >/root/bench.log 2>&1 &
        load=$!
        # Prints each number after the server has acknowledged that it is stored.
        seq $((round * 1000000)) $((round * 1000000 + 999999)) | sed 's/.*/insert into acknowledged values (&); select &;/' |
            client --unbuffered --skip-reconnect --skip-column-names bench >>"$data.acknowledged" 2>/dev/null &
        writer=$!
        sleep 4
        kill -KILL "$server"
        wait "$load" "$writer" "$server" 2>/dev/null || true
        start "$data" "$@"
    done
    client --skip-column-names -e "select n from acknowledged order by n" bench >"$data.stored"
    [[ -s $data.acknowledged ]] || fail "nothing was acknowledged"
    comm -23 <(sort "$data.acknowledged") <(sort "$data.stored") >/root/lost
    [[ ! -s /root/lost ]] || { head -n 5 /root/lost && fail "what was acknowledged is lost"; }
    quietly mariadb-check --no-defaults --socket=/tmp/mariadb.sock --user=root --all-databases --extended
    ! grep -E 'OK$' -v /root/log | grep -E ' : |error|corrupt' || fail "mariadb-check"
    client -e "optimize table bench.sbtest1; alter table bench.sbtest2 add column more int default 3, force; truncate bench.sbtest3; drop table bench.sbtest4" >/dev/null
    end "$server"
    find "$data" -name '*.ibd' | while read -r file; do quietly innochecksum "$file"; done
    rm -r "$data" "$data".*
}

run() {
    local on
    the_pool
    for on in $PLAIN $POOL; do
        over "$on"
        over "$on" --innodb-flush-method=fsync --innodb-use-native-aio=0
        over "$on" --innodb-flush-method=O_DSYNC
    done
}

# shellcheck shell=bash disable=SC2034,SC2086
# A branch on GlusterFS: a volume of two bricks, one of which is killed and comes back, then both.

packages=(glusterfs-server glusterfs-client)

# The command line does not take the addresses of loopback.
readonly HOST=10.99.0.1

volume() { gluster --mode=script volume "$@"; }
bricks() { pgrep glusterfsd; }
brick_runs() { volume status vol "$HOST:/bricks/$1/data" | grep -E '[[:space:]]Y[[:space:]]'; }
all_bricks_run() { brick_runs 1 && brick_runs 2; }
is_healed() { ! volume heal vol info | grep -E '^Number of entries: ([1-9]|-)'; }
is_left_out() { canopy status $POOL | grep '^ */disks/remote .* gone$' && [[ ! -e $POOL/there/file ]]; }

run() {
    local server i load
    ip addr add $HOST/32 dev lo
    disk /bricks/1
    disk /bricks/2
    disk /disks/a
    disk /disks/b
    mkdir -p /disks/remote /var/log/glusterfs /run/gluster
    glusterd --no-daemon >/root/glusterd.log 2>&1 &
    server=$!
    until_true volume list
    quietly volume create vol replica 2 $HOST:/bricks/{1,2}/data force
    quietly volume start vol
    until_true mount -t glusterfs $HOST:/vol /disks/remote
    pool_with_remote
    step "both bricks work"
    work
    fill_remote

    step "a brick is killed under load"
    (for i in {1..200}; do cp /root/data1 $POOL/there/load$i && cmp /root/data1 $POOL/there/load$i || exit 1; done) &
    load=$!
    # shellcheck disable=SC2046 # numbers
    kill -KILL $(bricks | head -n 1)
    work
    wait "$load" || fail "a file could not be written, or differs"
    step "it comes back"
    quietly volume start vol force
    until_true all_bricks_run
    until_true is_healed
    for i in {1..200}; do cmp /root/data1 $POOL/there/load$i; done

    step "both are killed"
    # shellcheck disable=SC2046
    kill -KILL $(bricks)
    work
    # The client says that it is not connected, as a filesystem does that is not there any more.
    until_true is_left_out
    work
    step "both are back"
    quietly volume start vol force
    until_true all_bricks_run
    remote_is_back
    compare_remote

    canopy umount $POOL
    until_true umount /disks/remote
    quietly volume stop vol
    end "$server"
    # shellcheck disable=SC2046
    until_true is_gone $(pgrep gluster || true)
    all_unmounted /bricks/1 /bricks/2
}

# shellcheck shell=bash disable=SC2034,SC2086
# A branch on MooseFS: a master and a chunk server, which stop, go on, are lost, and come back.

packages=(moosefs-master moosefs-chunkserver moosefs-client)

# The chunk server does not take the addresses of loopback.
readonly HOST=10.99.0.1

server_pids() { pgrep 'mfsmaster|mfschunkserver'; }

# After a kill, the master reads its log of changes (-a).
serve() {
    mfsmaster -c /root/master.cfg -f -a start >>/root/master.log 2>&1 &
    mfschunkserver -c /root/chunks.cfg -f start >>/root/chunks.log 2>&1 &
}

# The client answers once the servers have found each other.
can_write() { echo works >/disks/remote/probe && [[ $(cat /disks/remote/probe) == works ]] && rm /disks/remote/probe; }

run() {
    ip addr add $HOST/32 dev lo
    disk /chunks
    disk /disks/a
    disk /disks/b
    mkdir -p /disks/remote /var/lib/mfs /var/lib/chunks
    echo '* / rw,alldirs,admin,maproot=0:0' >/root/exports.cfg
    echo '/chunks' >/root/hdd.cfg
    : >/root/empty.cfg
    printf '%s\n' "WORKING_USER = root" "WORKING_GROUP = root" "DATA_PATH = /var/lib/mfs" "EXPORTS_FILENAME = /root/exports.cfg" \
        "TOPOLOGY_FILENAME = /root/empty.cfg" "IPMAP_FILENAME = /root/empty.cfg" >/root/master.cfg
    printf '%s\n' "WORKING_USER = root" "WORKING_GROUP = root" "DATA_PATH = /var/lib/chunks" "HDD_CONF_FILENAME = /root/hdd.cfg" \
        "MASTER_HOST = $HOST" >/root/chunks.cfg
    cp /var/lib/mfs/metadata.mfs.empty /var/lib/mfs/metadata.mfs
    serve
    until_true mfsmount /disks/remote -H $HOST -o allow_other
    until_true can_write
    # Of the room, MooseFS shows half, as it would keep each file twice.
    pool_with_remote -o minfreespace=100M
    step "the servers work"
    work
    fill_remote

    step "the servers stop"
    # shellcheck disable=SC2046 # numbers
    kill -STOP $(server_pids)
    remote_fails
    work
    step "they go on"
    # shellcheck disable=SC2046
    kill -CONT $(server_pids)
    remote_is_back

    step "they are lost"
    # shellcheck disable=SC2046
    kill -KILL $(server_pids)
    remote_fails
    work
    step "they are back"
    serve
    remote_is_back
    compare_remote

    canopy umount $POOL
    until_true umount /disks/remote
    # shellcheck disable=SC2046
    end $(server_pids)
    # shellcheck disable=SC2046
    until_true is_gone $(pgrep mfs || true)
    umount /chunks
}

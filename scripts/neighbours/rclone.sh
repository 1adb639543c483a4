# shellcheck shell=bash disable=SC2034,SC2086
# A branch on an rclone mount (local backend), which stops, goes on, is killed, and comes back.

packages=(rclone)

mount_remote() {
    rclone mount --config /dev/null --cache-dir /root/vfs --vfs-cache-mode writes --vfs-write-back 1s --dir-cache-time 1s --allow-other \
        :local:/export /disks/remote >>/root/rclone.log 2>&1 &
    remote=$!
    until_true mountpoint -q /disks/remote
}

is_left_out() { canopy status $POOL | grep '^ */disks/remote .* gone$' && [[ ! -e $POOL/there/file ]]; }

run() {
    local remote i
    disk /export
    disk /disks/a
    disk /disks/b
    mkdir -p /disks/remote
    mount_remote
    pool_with_remote
    step "rclone works"
    work
    head -c 300k /dev/urandom >/root/data
    for i in {1..10}; do
        cp /root/data /disks/remote/there/direct$i
        cmp /root/data $POOL/there/direct$i
        cp /root/data $POOL/there/new$i
        mv $POOL/there/new$i $POOL/there/moved$i
        cmp /root/data $POOL/there/moved$i
        echo more >>$POOL/there/moved$i
        cmp <(cat /root/data && echo more) $POOL/there/moved$i
        truncate -s 1000 $POOL/there/moved$i
        cmp <(head -c 1000 /root/data) $POOL/there/moved$i
        rm $POOL/there/moved$i
    done

    step "rclone stops"
    kill -STOP "$remote"
    remote_fails
    work
    step "rclone goes on"
    kill -CONT "$remote"
    remote_is_back

    step "rclone is killed"
    kill -KILL "$remote"
    wait "$remote" 2>/dev/null || true
    work
    # Nothing serves the mount any more, so the branch is gone: it is as if it had been taken out of the pool.
    until_true is_left_out
    work
    touch $POOL/here/made
    step "rclone is back"
    umount --lazy /disks/remote
    mount_remote
    remote_is_back
    for i in {1..10}; do cmp /root/data $POOL/there/direct$i; done

    canopy umount $POOL
    until_true fusermount3 -u /disks/remote
    until_true is_gone "$remote"
    umount /export
}

# shellcheck shell=bash disable=SC2034,SC2086,SC2016
# Podman keeps images and containers on the pool, with the kernel's overlayfs.

packages=(podman crun busybox-static)

engine() {
    podman --root "$1/containers" --runroot /run/containers-"${1#/}" --storage-driver overlay --cgroup-manager cgroupfs "${@:2}"
}

in_new() { engine "$on" run --rm --network none --cgroups disabled --security-opt seccomp=unconfined "$@"; }

run() {
    local on i
    # The runtime looks at its filesystem, though no container has a group.
    mount -t cgroup2 cgroup /sys/fs/cgroup
    the_pool
    mkdir -p /root/image/{bin,etc,tmp,data}
    cp /bin/busybox /root/image/bin/busybox
    for i in sh cat ls mv rm cp mkdir ln sha256sum seq; do ln -s busybox /root/image/bin/$i; done
    head -c 3M /dev/urandom >/root/image/data/big
    for i in {1..200}; do echo $i >/root/image/data/file$i; done
    for on in $PLAIN $POOL; do
        step "$on"
        tar c -C /root/image . | engine "$on" import - localhost/base >/dev/null 2>&1
        engine "$on" info --format '{{.Store.GraphDriverName}}' | grep -qx overlay
        # Copied up, removed, renamed, made again: whiteouts, opaque directories, and links.
        in_new localhost/base sh -ec 'for i in $(seq 100); do echo new >>/data/file$i; done
            rm /data/file101; mv /data/file102 /data/moved; ln /data/file103 /data/linked
            rm -r /tmp; mkdir /tmp; cp /data/big /tmp/big; sha256sum /data/big /tmp/big >/dev/null
            [ ! -e /data/file101 ] && [ "$(cat /data/moved)" = 102 ] && [ "$(cat /data/file1)" = "$(printf "1\nnew")" ]'
        # Each container begins with the image as it was.
        in_new localhost/base sh -ec '[ "$(cat /data/file1)" = 1 ] && [ -e /data/file101 ]'
        # A layer above.
        engine "$on" run --name layer --network none --cgroups disabled --security-opt seccomp=unconfined localhost/base \
            sh -ec 'rm -r /data/file7 /data/file8; echo layer >/data/file9'
        quietly engine "$on" commit layer localhost/above
        in_new localhost/above sh -ec '[ ! -e /data/file7 ] && [ "$(cat /data/file9)" = layer ] && [ "$(cat /data/file10)" = 10 ]'
        # A volume.
        mkdir "$on/volume"
        in_new --volume "$on/volume:/mnt" localhost/base sh -ec 'cp /data/big /mnt/big'
        cmp /root/image/data/big "$on/volume/big"
        quietly engine "$on" rm --all --force
        quietly engine "$on" rmi --all --force
        quietly engine "$on" system reset --force
        rm -rf "$on/containers" "$on/volume"
    done
}

# shellcheck shell=bash disable=SC2034,SC2086
# Disk images of virtual machines: qemu-img and qemu-io, past the page cache (O_DIRECT) and through it, with each kind of I/O.

packages=(qemu-utils)

# on_image FORMAT CACHE AIO COMMAND...: commands of qemu-io. A pattern that is not as expected is an error.
on_image() {
    local command commands=()
    for command in "${@:4}"; do commands+=(--cmd "$command"); done
    quietly qemu-io -f "$1" -t "$2" -i "$3" "${commands[@]}" "$image"
    if grep -qi "verification failed" /root/log; then fail "another pattern in $image ($*)"; fi
}

# over DIRECTORY
over() {
    local dir=$1/images format how aio cache image
    mkdir "$dir"
    for format in raw qcow2; do
        step "$dir, $format"
        for how in off metadata falloc full; do
            [[ $format/$how != raw/metadata ]] || continue
            quietly qemu-img create -f $format -o preallocation=$how "$dir/$format-$how" 256M
            quietly qemu-img resize "$dir/$format-$how" 300M
        done
        image=$dir/$format-off
        for aio in threads native io_uring; do
            for cache in none directsync writeback; do
                [[ $aio/$cache != native/writeback ]] || continue
                on_image $format $cache $aio "write -P 1 0 16M" "write -P 2 1M 64k" "write -P 3 4608 512" "aio_write -P 4 32M 8M" \
                    aio_flush "write -z 2M 1M" "discard 3M 1M" flush
                on_image $format $cache $aio "read -P 2 1M 64k" "read -P 3 4608 512" "read -P 4 32M 8M" "read -P 0 2M 1M" "read -P 1 4M 12M"
                [[ $format == raw ]] || quietly qemu-img check -f $format "$image"
                quietly qemu-img convert -f $format -O qcow2 -t $cache -T $cache -m 8 -W "$image" "$dir/converted"
                quietly qemu-img compare -f $format -F qcow2 "$image" "$dir/converted"
                quietly qemu-img convert -f qcow2 -O raw -S 4k -t none -T none "$dir/converted" "$dir/back"
                quietly qemu-img compare -f raw -F $format "$dir/back" "$image"
                rm "$dir/converted" "$dir/back"
            done
        done
    done
    quietly qemu-img snapshot -c one "$image"
    quietly qemu-img snapshot -a one "$image"
    quietly qemu-img create -f qcow2 -b "$image" -F qcow2 "$dir/child"
    quietly qemu-img commit -f qcow2 "$dir/child"
    quietly qemu-img check "$image"
    # Another process that has the image open keeps its lock.
    sleep infinity | qemu-io -f qcow2 "$image" >/dev/null &
    until_true refused qemu-img resize "$image" 400M
    kill "$(pgrep -x sleep)"
    wait
    rm -r "$dir"
}

refused() {
    local said
    ! said=$("$@" 2>&1) && [[ $said == *lock* ]]
}

run() {
    the_pool
    over "$PLAIN"
    over "$POOL"
}

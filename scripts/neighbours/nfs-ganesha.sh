# shellcheck shell=bash disable=SC2034,SC2086
# nfs-ganesha exports the pool (FSAL VFS) to clients in user space (libnfs), over NFSv4.

packages=(nfs-ganesha nfs-ganesha-vfs libnfs-utils fio)

# export_of NUMBER DIRECTORY: its block in the configuration, as docs/programs/nfs.md has it.
export_of() {
    printf 'EXPORT { Export_Id = %d; Path = %s; Pseudo = %s; Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Protocols = 4; Filesystem_Id = 7.%d; FSAL { Name = VFS; } }\n' \
        "$1" "$2" "$2" "$1"
}

serve() {
    ganesha.nfsd -F -f /root/ganesha.conf -L /root/ganesha.log -p /root/ganesha.pid >/dev/null 2>&1 &
    server=$!
    until_true nfs-ls "nfs://127.0.0.1$POOL/?version=4"
}

# over DIRECTORY
over() {
    local url=nfs://127.0.0.1$1 i
    step "libnfs on $1"
    mkdir "$1/dir"
    for i in {1..40}; do
        head -c $((i * 40000)) /dev/urandom >/root/data
        quietly nfs-cp /root/data "$url/dir/file$i?version=4"
        cmp /root/data "$1/dir/file$i"
        cmp /root/data <(nfs-cat "$url/dir/file$i?version=4")
    done
    mkdir "$1/dir/below"
    mv "$1/dir/file1" "$1/dir/below/moved"
    (($(nfs-ls "$url/dir?version=4" | wc -l) == 40)) || fail "$(nfs-ls "$url/dir?version=4" | tail -n 3)"
    nfs-ls -R "$url/dir?version=4" | grep moved >/dev/null
    if fio --enghelp | grep nfs >/dev/null; then
        # shellcheck disable=SC2016 # fio's own variable
        quietly fio --name=verify --ioengine=nfs --nfs_url="$url?version=4" --rw=randrw --bs=16k --size=24M --numjobs=2 \
            --verify=crc32c --verify_fatal=1 --thread --filename_format='fio.$jobnum'
    fi
}

# Handles that the server holds lead to the same files after a restart of it.
run() {
    local server
    the_pool
    {
        echo 'NFS_CORE_PARAM { Protocols = 4; Enable_NLM = false; Enable_RQUOTA = false; allow_set_io_flusher_fail = true; }'
        echo 'NFSV4 { Graceless = true; RecoveryBackend = fs; }'
        export_of 1 $POOL
        export_of 2 $PLAIN
    } >/root/ganesha.conf
    mkdir -p /run/ganesha /var/lib/nfs/ganesha
    serve
    over "$PLAIN"
    over "$POOL"
    step "restart"
    end "$server"
    serve
    nfs-ls -R "nfs://127.0.0.1$POOL/dir?version=4" | grep moved >/dev/null
    end "$server"
}

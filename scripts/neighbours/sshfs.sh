# shellcheck shell=bash disable=SC2034,SC2086
# A branch on sshfs, whose server stops, goes on, is lost, and comes back.

packages=(openssh-server sshfs)

serve() {
    /usr/sbin/sshd -D -e -f /root/sshd_config >>/root/sshd.log 2>&1 &
    server=$!
}

# The server: the process that listens, and those of its connections.
server_pids() { pgrep 'sshd|sftp-server'; }

mount_remote() {
    sshfs -p 2222 -o IdentityFile=/root/key,StrictHostKeyChecking=no,UserKnownHostsFile=/dev/null,reconnect,ServerAliveInterval=3,allow_other \
        root@127.0.0.1:/export /disks/remote
}

run() {
    local server
    ssh-keygen -q -t ed25519 -N '' -f /root/key
    ssh-keygen -q -t ed25519 -N '' -f /root/host_key
    mkdir -p /root/.ssh /run/sshd
    chmod 700 /root/.ssh
    cp /root/key.pub /root/.ssh/authorized_keys
    printf '%s\n' "Port 2222" "ListenAddress 127.0.0.1" "HostKey /root/host_key" "Subsystem sftp /usr/lib/openssh/sftp-server" \
        "PermitRootLogin yes" "UsePAM no" >/root/sshd_config
    disk /export
    disk /disks/a
    disk /disks/b
    mkdir -p /disks/remote
    serve
    until_true mount_remote
    pool_with_remote
    step "the server works"
    work
    fill_remote

    step "the server stops"
    # shellcheck disable=SC2046 # numbers
    kill -STOP $(server_pids)
    remote_fails
    work
    step "the server goes on"
    # shellcheck disable=SC2046
    kill -CONT $(server_pids)
    remote_is_back

    step "the server is lost"
    # shellcheck disable=SC2046
    kill -KILL $(server_pids)
    wait "$server" 2>/dev/null || true
    remote_fails
    work
    step "the server is back"
    serve
    remote_is_back
    compare_remote

    canopy umount $POOL
    fusermount3 -u /disks/remote
    end "$server"
    # shellcheck disable=SC2046
    until_true is_gone $(pgrep ssh || true)
    umount /export
}

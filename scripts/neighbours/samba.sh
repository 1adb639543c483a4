# shellcheck shell=bash disable=SC2034,SC2086
# Samba exports the pool and the plain disk: files by smbclient, and Samba's own tests (smbtorture). Each test that passes on the
# disk must pass on the pool.

packages=(samba samba-vfs-modules samba-testsuite smbclient)

# Tests of what concerns the filesystem below the server. Others concern the protocol alone (leases and oplocks too), need two
# servers, or take minutes.
suites=(
    smb2.acls smb2.acls_non_canonical smb2.check-sharemode smb2.compound smb2.create smb2.create_no_streams smb2.delete-on-close-perms
    smb2.deny smb2.dir smb2.dosmode smb2.durable-open smb2.fileid smb2.getinfo smb2.ioctl smb2.lock smb2.maxfid
    smb2.name-mangling smb2.notify smb2.openattr smb2.read smb2.rename smb2.rw smb2.set-sparse-ioctl smb2.setinfo
    smb2.sharemode smb2.streams smb2.timestamps smb2.winattr smb2.zero-data-ioctl
    base.attr base.chkpath base.delete base.deny1 base.fdpass base.lock base.mangle base.ntdeny1 base.open
    base.rename base.rw1 raw.rename raw.chkpath raw.mkdir raw.open raw.read raw.write raw.search raw.seek raw.unlink
)

# share NAME DIRECTORY: as docs/programs/samba.md has it.
share() {
    printf '[%s]\n  path = %s\n  read only = no\n  vfs objects = streams_xattr\n  store dos attributes = yes\n  ea support = yes\n' "$1" "$2"
}

# client SHARE COMMANDS
client() { smbclient -U root%secret "//127.0.0.1/$1" -c "$2"; }

# files SHARE DIRECTORY: puts, reads, renames and removes files, and compares them with what is there.
files() {
    local i
    step "smbclient on $2"
    mkdir "$2/files"
    for i in {1..20}; do
        head -c $((i * 70000)) /dev/urandom >/root/data$i
        quietly client "$1" "cd files; put /root/data$i file$i; rename file$i moved$i; get moved$i /root/back$i"
        cmp /root/data$i "$2/files/moved$i"
        cmp /root/data$i /root/back$i
    done
    quietly client "$1" "cd files; mkdir below; rename moved1 below/moved1; del moved2"
    [[ -f $2/files/below/moved1 && ! -e $2/files/moved2 ]] || fail "a file is not where it was moved, or not removed"
    (($(client "$1" "ls files/*" | grep -c ' moved') == 18)) || fail "the listing differs"
    rm -r "$2/files" /root/{data,back}*
}

# torture SHARE: prints the names of the tests that pass, one a line. One is left out, which passes on the disk in one run of
# four.
torture() {
    local suite
    for suite in "${suites[@]}"; do
        timeout --signal=KILL 120 smbtorture -U root%secret --option=torture:progress=no "//127.0.0.1/$1" "$suite" 2>/dev/null |
            sed -n "s/^success: /$suite: /p" || true
    done | grep -vxF 'smb2.notify: valid-req' | sort
}

run() {
    local server
    the_pool
    mkdir -p /var/log/samba /run/samba /var/lib/samba/private
    {
        printf '[global]\n  interfaces = lo\n  bind interfaces only = yes\n  disable spoolss = yes\n  load printers = no\n'
        printf '  server min protocol = NT1\n  client min protocol = NT1\n  kernel oplocks = no\n'
        share pool $POOL
        share plain $PLAIN
    } >/etc/samba/smb.conf
    printf 'secret\nsecret\n' | smbpasswd -s -a root >/dev/null
    smbd --foreground </dev/null >/root/smbd.log 2>&1 &
    server=$!
    until_true client pool ls
    files plain $PLAIN
    files pool $POOL
    step "smbtorture on $PLAIN"
    torture plain >/root/plain
    step "smbtorture on $POOL"
    torture pool >/root/pool
    step "$(wc -l </root/plain) tests pass on the disk, $(wc -l </root/pool) on the pool"
    (($(wc -l </root/plain) > 100)) || fail "too few tests pass on the disk"
    if comm -23 /root/plain /root/pool | grep .; then fail "these pass on the disk only"; fi
    end "$server"
    # shellcheck disable=SC2046 # numbers
    until_true is_gone $(pgrep smbd || true)
}

# shellcheck shell=bash disable=SC2034,SC2086
# SnapRAID over the branches of the pool: sync, lose a disk, fix.

packages=(snapraid)

run() {
    local i
    the_pool
    disk /disks/parity
    mkdir -p /var/snapraid
    printf '%s\n' "parity /disks/parity/snapraid.parity" "content /var/snapraid/content" "content /disks/a/snapraid.content" "data d1 /disks/a" "data d2 /disks/b" \
        "exclude /lost+found/" >/etc/snapraid.conf
    mkdir -p $POOL/films
    for i in {1..60}; do head -c $((i * 20000)) /dev/urandom >$POOL/films/film$i; done
    (cd $POOL && find . -path ./lost+found -prune -o -type f ! -name 'snapraid.*' -print0 | sort -z | xargs -0 sha256sum) >/root/sums
    quietly snapraid sync
    quietly snapraid scrub -p full
    quietly snapraid diff
    step "lose a disk"
    rm -r /disks/b/films
    quietly snapraid fix -d d2
    (cd $POOL && quietly sha256sum -c /root/sums)
    quietly snapraid diff
}

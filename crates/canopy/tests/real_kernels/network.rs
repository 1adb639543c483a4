//! Pools that the kernel's NFS server exports, and branches that are mounted from an SMB server.

use super::filesystems::steps;
use super::rig::{BINARY, MIB, drop_caches, modules};
use canopy_testkit::cmd::{run, wait_until};
use canopy_testkit::{LoopFs, PATIENCE, Pool};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A server in the foreground, which ends with this.
struct Daemon(Child);

impl Daemon {
    fn start(program: &str, arguments: &[&str]) -> Daemon {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        Daemon(command.spawn().unwrap_or_else(|why| panic!("{program}: {why}")))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A mounted directory of a server.
struct Remote {
    dir: tempfile::TempDir,
}

impl Remote {
    fn mount(kind: &str, options: &str, source: &str) -> Remote {
        let dir = tempfile::Builder::new().prefix("canopy-remote-").tempdir().expect("a directory");
        let mounted = || {
            let mut command = Command::new("mount");
            command.args(["-t", kind, "-o", options, source]).arg(dir.path());
            command.output().is_ok_and(|done| done.status.success())
        };
        // The server may not be ready yet.
        assert!(wait_until(PATIENCE, mounted), "{source} cannot be mounted with {options}");
        Remote { dir }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        run("umount", [self.dir.path()]);
    }
}

/// The kernel's NFS server, and the programs that it needs.
struct NfsServer {
    exported: Vec<String>,
    _daemons: [Daemon; 2],
}

impl NfsServer {
    fn start(paths: &[&Path]) -> NfsServer {
        modules(&["nfsd", "nfs", "nfsv3", "nfsv4", "lockd"]);
        for dir in ["/var/lib/nfs/rpc_pipefs", "/var/lib/nfs/v4recovery", "/var/lib/nfs/sm", "/run/rpcbind"] {
            fs::create_dir_all(dir).expect("mkdir");
        }
        for (file, text) in [
            ("/etc/exports", ""),
            ("/var/lib/nfs/etab", ""),
            ("/var/lib/nfs/rmtab", ""),
            ("/etc/hosts", "127.0.0.1 localhost\n"),
            (
                "/etc/nsswitch.conf",
                "passwd: files\ngroup: files\nhosts: files\nrpc: files\nservices: files\n",
            ),
        ] {
            fs::write(file, text).expect("a file of the machine");
        }
        let users = "_rpc:x:100:65534::/run/rpcbind:/bin/false\nstatd:x:101:65534::/var/lib/nfs:/bin/false\n";
        File::options().append(true).open("/etc/passwd").unwrap().write_all(users.as_bytes()).unwrap();
        let _ = Command::new("mount").args(["-t", "nfsd", "nfsd", "/proc/fs/nfsd"]).output();
        let binder = Daemon::start("rpcbind", &["-f", "-w"]);
        assert!(wait_until(PATIENCE, || Path::new("/run/rpcbind.sock").exists()));
        let exported: Vec<String> =
            paths.iter().map(|path| format!("127.0.0.1:{}", path.display())).collect();
        for (number, path) in exported.iter().enumerate() {
            let options = format!("rw,no_root_squash,insecure,no_subtree_check,fsid={}", number + 7);
            run("exportfs", ["-o", &options, path]);
        }
        // Else clients wait for a minute and a half when the server goes on.
        for file in ["nfsv4leasetime", "nfsv4gracetime"] {
            fs::write(Path::new("/proc/fs/nfsd").join(file), "10").expect("nfsd");
        }
        let mounter = Daemon::start("rpc.mountd", &["-F"]);
        run("rpc.nfsd", ["4"]);
        NfsServer { exported, _daemons: [binder, mounter] }
    }
}

impl NfsServer {
    /// Lets go of what is exported; clients wait.
    fn stop(&self) {
        run("rpc.nfsd", ["0"]);
        run("exportfs", ["-f"]);
    }

    fn go_on(&self) {
        run("rpc.nfsd", ["4"]);
    }
}

impl Drop for NfsServer {
    fn drop(&mut self) {
        run("rpc.nfsd", ["0"]);
        for path in &self.exported {
            run("exportfs", ["-u", path]);
        }
        run("exportfs", ["-f"]);
    }
}

/// Clients of a pool see what clients of a disk see, and files and directories that they hold outlive the server's caches, and
/// the pool that they were opened in.
#[test]
#[ignore = "needs the kernel's NFS server (scripts/test.sh --kernel)"]
fn the_kernels_nfs_server_exports_a_pool() {
    modules(&["ext4", "loop"]);
    let disks = [LoopFs::ext4(64 * MIB), LoopFs::ext4(64 * MIB), LoopFs::ext4(64 * MIB)];
    disks.iter().for_each(|disk| fs::create_dir(disk.path().join("dir")).expect("mkdir"));
    let home = tempfile::tempdir().expect("a directory");
    let mount = || {
        let builder = Pool::builder(BINARY).option("minfreespace=0").at(home.path());
        builder.branch(disks[0].path()).branch(disks[1].path()).mount()
    };
    let mut mounted = mount();
    let server = NfsServer::start(&[home.path(), disks[2].path()]);
    for version in ["3,nolock", "4.2"] {
        let options = format!("vers={version},tcp");
        let [pool, disk] = [0, 1].map(|index| Remote::mount("nfs", &options, &server.exported[index]));
        let (expected, seen) = (steps(&disk.at("dir")), steps(&pool.at("dir")));
        println!("NFS {version}: {} steps", seen.len());
        assert_eq!(seen, expected, "NFS {version}: left of the pool, right of the disk");
        fs::write(pool.at("dir/kept"), "text").expect("write");
        let mut open = File::options().read(true).write(true).open(pool.at("dir/kept")).expect("open");
        let dir = File::open(pool.at("dir")).expect("open");
        drop_caches();
        let mut text = String::new();
        open.read_to_string(&mut text).expect("read after drop_caches");
        assert_eq!(text, "text");
        open.write_all(b", more").expect("write after drop_caches");
        open.sync_all().expect("fsync");
        rustix::fs::accessat(&dir, "kept", rustix::fs::Access::EXISTS, rustix::fs::AtFlags::empty())
            .expect("a name in a directory that was open before drop_caches");
        assert_eq!(fs::read_to_string(home.path().join("dir/kept")).expect("read"), "text, more");
        fs::rename(pool.at("dir/kept"), pool.at("kept")).expect("rename");
        drop_caches();
        assert_eq!(fs::read_to_string(pool.at("kept")).expect("read"), "text, more");
        assert_eq!(open.metadata().expect("a renamed file that is open").len(), 10);
        // The pool is mounted anew while the server is stopped, as the manual says.
        server.stop();
        mounted.umount();
        mounted = mount();
        server.go_on();
        if version.starts_with('3') {
            assert_eq!(open.metadata().expect("a file that was open before").len(), 10);
            open.write_all(b"!").and_then(|()| open.sync_all()).expect("write to it");
        }
        let found = fs::read_to_string(pool.at("kept")).expect("read after the pool was mounted anew");
        assert!(found.starts_with("text, more"), "{found}");
        rustix::fs::accessat(&dir, ".", rustix::fs::Access::EXISTS, rustix::fs::AtFlags::empty())
            .expect("a directory that was open before");
        drop((open, dir));
        fs::remove_file(pool.at("kept")).expect("unlink");
    }
    drop(server);
    mounted.umount();
}

/// A branch of a pool that is a mount of an SMB server behaves as the mount does.
#[test]
#[ignore = "needs the kernel's SMB server (scripts/test.sh --kernel)"]
fn a_branch_mounted_by_cifs() {
    if rustix::system::uname().release().to_bytes().starts_with(b"6.1.") {
        println!("skipped: the SMB server of Linux 6.1 dies of a null pointer itself (ksmbd, smb2_open)");
        return;
    }
    modules(&["ksmbd", "cifs"]);
    if !Path::new("/sys/class/ksmbd-control").exists() {
        println!("skipped: this kernel has no ksmbd");
        return;
    }
    let disk = LoopFs::ext4(64 * MIB);
    fs::set_permissions(disk.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("chmod");
    fs::create_dir_all("/etc/ksmbd").expect("mkdir");
    let share = format!(
        "[global]\nnetbios name = guest\n[share]\npath = {}\nread only = no\n",
        disk.path().display()
    );
    fs::write("/etc/ksmbd/ksmbd.conf", share).expect("a file of the machine");
    run("ksmbd.adduser", ["-a", "-p", "secret", "root"]);
    let server = Daemon::start("ksmbd.mountd", &["-n"]);
    let options = "username=root,password=secret,vers=3.1.1,noperm";
    let remote = Remote::mount("cifs", options, "//127.0.0.1/share");
    let plain = LoopFs::tmpfs(16 * MIB);
    for dir in ["branch/dir", "direct/dir"] {
        fs::create_dir_all(remote.at(dir)).expect("mkdir");
    }
    let pool = Pool::builder(BINARY)
        .branch(remote.at("branch"))
        .branch(plain.path())
        .option("minfreespace=0,category.create=ff")
        .mount();
    let (expected, seen) = (steps(&remote.at("direct/dir")), steps(&pool.path().join("dir")));
    println!("cifs: {} steps", seen.len());
    assert_eq!(seen, expected, "left through the pool, right on the mount");
    pool.umount();
    drop(remote);
    drop(server);
    let _ = Command::new("ksmbd.control").arg("-s").output();
}

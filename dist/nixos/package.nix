# Canopy as a package of Nix: pkgs.callPackage ./dist/nixos/package.nix { }
{ lib, rustPlatform, installShellFiles }:

rustPlatform.buildRustPackage {
  pname = "canopy";
  version = (lib.importTOML ../../Cargo.toml).workspace.package.version;
  src = lib.cleanSource ../..;
  cargoLock.lockFile = ../../Cargo.lock;
  cargoBuildFlags = [ "--package" "canopy" "--bin" "canopy" ];
  # Most tests mount filesystems, which a build cannot.
  doCheck = false;
  nativeBuildInputs = [ installShellFiles ];
  postInstall = ''
    installManPage man/*.8
    installShellCompletion --bash --name canopy dist/completions/canopy.bash
    installShellCompletion --zsh --name _canopy dist/completions/_canopy
    installShellCompletion --fish --name canopy.fish dist/completions/canopy.fish
  '';
  meta = {
    description = "Many disks as one tree, with ordinary files on each";
    license = with lib.licenses; [ mit asl20 ];
    platforms = lib.platforms.linux;
    mainProgram = "canopy";
  };
}

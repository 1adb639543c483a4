# A module of NixOS: pools that are mounted at boot. In configuration.nix:
#   imports = [ /path/to/canopy/dist/nixos/module.nix ];
#   services.canopy.pools.media = {
#     mountpoint = "/mnt/media";
#     branches = [ "/mnt/disk1" "/mnt/disk2" ];
#     options = { minfreespace = "20G"; category.create = "mfs"; };
#   };
{ config, lib, pkgs, ... }:

let
  cfg = config.services.canopy;
  toml = pkgs.formats.toml { };
  description = name: pool:
    toml.generate "canopy-${name}.toml" (pool.options // { inherit (pool) mountpoint branches; });
in
{
  options.services.canopy = {
    package = lib.mkOption {
      type = lib.types.package;
      default = pkgs.callPackage ./package.nix { };
      description = "The package of Canopy.";
    };
    pools = lib.mkOption {
      default = { };
      description = "Pools by name. Each is mounted at boot by the unit canopy-NAME.";
      type = lib.types.attrsOf (lib.types.submodule {
        options = {
          mountpoint = lib.mkOption {
            type = lib.types.path;
            description = "Where the pool appears.";
          };
          branches = lib.mkOption {
            type = lib.types.listOf lib.types.str;
            description = "The directories that are joined; patterns such as /mnt/disk* are possible.";
          };
          options = lib.mkOption {
            type = toml.type;
            default = { };
            description = "Options of the pool; `canopy options` lists them.";
          };
        };
      });
    };
  };

  config = lib.mkIf (cfg.pools != { }) {
    environment.systemPackages = [ cfg.package ];
    boot.kernelModules = [ "fuse" ];
    environment.etc = lib.mapAttrs' (name: pool:
      lib.nameValuePair "canopy/${name}.toml" { source = description name pool; }) cfg.pools;
    systemd.tmpfiles.rules = lib.mapAttrsToList (_: pool: "d ${pool.mountpoint} - - - -") cfg.pools;
    systemd.services = lib.mapAttrs' (name: pool:
      lib.nameValuePair "canopy-${name}" {
        description = "Canopy pool ${name}";
        documentation = [ "man:canopy(8)" ];
        after = [ "local-fs.target" "network-online.target" ];
        wants = [ "network-online.target" ];
        wantedBy = [ "multi-user.target" ];
        # A rebuild must not unmount a pool that programs use: what has changed is read again.
        restartIfChanged = false;
        reloadTriggers = [ (description name pool) ];
        serviceConfig = {
          Type = "notify";
          NotifyAccess = "all";
          ExecStart = "${cfg.package}/bin/canopy mount -f ${name}";
          ExecReload = "${cfg.package}/bin/canopy set ${name} config=";
          KillMode = "mixed";
          TimeoutStopSec = 30;
          Restart = "on-failure";
          OOMPolicy = "continue";
        };
      }) cfg.pools;
  };
}

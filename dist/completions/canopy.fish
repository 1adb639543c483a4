# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_canopy_global_optspecs
    string join \n h/help V/version
end

function __fish_canopy_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_canopy_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_canopy_using_subcommand
    set -l cmd (__fish_canopy_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c canopy -n "__fish_canopy_needs_command" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_needs_command" -s V -l version -d 'Print version'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "mount" -d 'Mount directories as one pool'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "umount" -d 'Unmount a pool'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "sync" -d 'Write everything in a pool to its disks'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "upgrade" -d 'Serve a pool with the program that is installed now'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "get" -d 'Show one value of a running pool, or all as KEY=VALUE'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "set" -d 'Change an option of a running pool'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "add" -d 'Add branches to a running pool'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "remove" -d 'Remove branches from a running pool'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "replace" -d 'Replace a branch of a running pool by another directory'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "mode" -d 'Change the mode of a branch: RW, RO or NC'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "list" -d 'Show the options of a running pool as a table'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "status" -d 'Show pools, their branches, and what is wrong with them'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "top" -d 'Show live what a pool and its branches do'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "metrics" -d 'Print what pools do, in the OpenMetrics format'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "explain" -d 'Show which branch an operation would use now, and why'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "fsck" -d 'Find and repair files whose copies differ in owner, mode or size'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "collect-info" -d 'Gather information for a bug report'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "options" -d 'List the options for -o with their defaults and values'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "bench" -d 'Measure how fast a pool is, compared with its own branch'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "init" -d 'Set up a new pool, step by step'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "migrate" -d 'Turn what mergerfs is configured with into Canopy\'s'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "doctor" -d 'Find what is wrong on this machine, and how to fix it'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "which" -d 'Show which branches hold a file, and how its copies differ'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "ls" -d 'List a directory with the branches that hold each entry'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "du" -d 'Show how much of a directory tree is on each branch'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "move" -d 'Move files of a pool to a branch'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "balance" -d 'Even out how full the branches of a pool are'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "drain" -d 'Empty a branch, so that its disk can be taken out'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "consolidate" -d 'Bring the files of a directory together on one branch'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "tier" -d 'Move files between tiers, and apply rules: places and copies'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "dup" -d 'Make copies of files on other disks of a pool'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "dedup" -d 'Remove surplus copies of files that other branches hold too'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "verify" -d 'Check files against their checksums, store new ones, and repair'
complete -c canopy -n "__fish_canopy_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c canopy -n "__fish_canopy_using_subcommand mount" -s o -d 'KEY=VALUE[,...]; canopy options lists them, later ones win' -r
complete -c canopy -n "__fish_canopy_using_subcommand mount" -s f -l foreground -d 'Stay in the foreground, and log to stderr'
complete -c canopy -n "__fish_canopy_using_subcommand mount" -l over -d 'Hide the files of a mountpoint that is not empty'
complete -c canopy -n "__fish_canopy_using_subcommand mount" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand umount" -s l -l lazy -d 'Detach it at once; it ends when it is no longer in use'
complete -c canopy -n "__fish_canopy_using_subcommand umount" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand sync" -l timeout -d 'How long the disks may take' -r
complete -c canopy -n "__fish_canopy_using_subcommand sync" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand upgrade" -l force -d 'Also if the pool is served by that program already'
complete -c canopy -n "__fish_canopy_using_subcommand upgrade" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand get" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand set" -s p -l persist -d 'Change the config file of the pool as well'
complete -c canopy -n "__fish_canopy_using_subcommand set" -s y -l yes -d 'Accept a list of branches that lacks some of the present ones'
complete -c canopy -n "__fish_canopy_using_subcommand set" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand add" -l mode -d 'Their mode' -r -f -a "RW\t'Read, change and create'
RO\t'Read only'
NC\t'Read and change, but create nothing'"
complete -c canopy -n "__fish_canopy_using_subcommand add" -l first -d 'Put them in front of the others, not at the end'
complete -c canopy -n "__fish_canopy_using_subcommand add" -l no-persist -d 'Change the running pool only, not its config file'
complete -c canopy -n "__fish_canopy_using_subcommand add" -s n -l dry-run -d 'Show what would change, and do nothing'
complete -c canopy -n "__fish_canopy_using_subcommand add" -s y -l yes -d 'Do not ask, even if files disappear from the pool'
complete -c canopy -n "__fish_canopy_using_subcommand add" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c canopy -n "__fish_canopy_using_subcommand remove" -l no-persist -d 'Change the running pool only, not its config file'
complete -c canopy -n "__fish_canopy_using_subcommand remove" -s n -l dry-run -d 'Show what would change, and do nothing'
complete -c canopy -n "__fish_canopy_using_subcommand remove" -s y -l yes -d 'Do not ask, even if files disappear from the pool'
complete -c canopy -n "__fish_canopy_using_subcommand remove" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand replace" -l no-persist -d 'Change the running pool only, not its config file'
complete -c canopy -n "__fish_canopy_using_subcommand replace" -s n -l dry-run -d 'Show what would change, and do nothing'
complete -c canopy -n "__fish_canopy_using_subcommand replace" -s y -l yes -d 'Do not ask, even if files disappear from the pool'
complete -c canopy -n "__fish_canopy_using_subcommand replace" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand mode" -l no-persist -d 'Change the running pool only, not its config file'
complete -c canopy -n "__fish_canopy_using_subcommand mode" -s n -l dry-run -d 'Show what would change, and do nothing'
complete -c canopy -n "__fish_canopy_using_subcommand mode" -s y -l yes -d 'Do not ask, even if files disappear from the pool'
complete -c canopy -n "__fish_canopy_using_subcommand mode" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c canopy -n "__fish_canopy_using_subcommand list" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand status" -l fstab-file -d 'The fstab to look at' -r -F
complete -c canopy -n "__fish_canopy_using_subcommand status" -l json -d 'Print JSON, for programs'
complete -c canopy -n "__fish_canopy_using_subcommand status" -s v -l verbose -d 'Also show the kernel\'s features and privileges'
complete -c canopy -n "__fish_canopy_using_subcommand status" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand top" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand metrics" -l listen -d 'Serve them over HTTP at 127.0.0.1:PORT or a socket' -r
complete -c canopy -n "__fish_canopy_using_subcommand metrics" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand explain" -l json -d 'Print JSON, for programs'
complete -c canopy -n "__fish_canopy_using_subcommand explain" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand fsck" -s f -l fix -d 'Give the others the owner and mode of this copy' -r -f -a "none\t''
manual\t''
newest\t''
largest\t''
nonroot\t''"
complete -c canopy -n "__fish_canopy_using_subcommand fsck" -s s -l check-size -d 'Compare sizes as well' -r
complete -c canopy -n "__fish_canopy_using_subcommand fsck" -l copy-file -d 'With --fix: copy data and attributes as well' -r
complete -c canopy -n "__fish_canopy_using_subcommand fsck" -l bwlimit -d 'At most this many bytes a second (20M)' -r
complete -c canopy -n "__fish_canopy_using_subcommand fsck" -l include -d 'Only files that match (by name; by path with a slash)' -r
complete -c canopy -n "__fish_canopy_using_subcommand fsck" -l exclude -d 'No files that match' -r
complete -c canopy -n "__fish_canopy_using_subcommand fsck" -l min-size -d 'Only files of at least this size (such as 100M)' -r
complete -c canopy -n "__fish_canopy_using_subcommand fsck" -l max-size -d 'Only files of at most this size' -r
complete -c canopy -n "__fish_canopy_using_subcommand fsck" -l older -d 'Only files not changed for so long (such as 2d)' -r
complete -c canopy -n "__fish_canopy_using_subcommand fsck" -l newer -d 'Only files changed since then' -r
complete -c canopy -n "__fish_canopy_using_subcommand fsck" -l owner -d 'Only files of this user (a name or number)' -r
complete -c canopy -n "__fish_canopy_using_subcommand fsck" -s v -l verbose -d 'Print each path that is checked'
complete -c canopy -n "__fish_canopy_using_subcommand fsck" -l remove-leftovers -d 'Remove what crashes of other programs have left'
complete -c canopy -n "__fish_canopy_using_subcommand fsck" -l json -d 'Print JSON: the plan (dry run) or what became of it'
complete -c canopy -n "__fish_canopy_using_subcommand fsck" -s q -l quiet -d 'Print nothing but errors'
complete -c canopy -n "__fish_canopy_using_subcommand fsck" -l eager -d 'Normal I/O priority (default: yield to others)'
complete -c canopy -n "__fish_canopy_using_subcommand fsck" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand collect-info" -s o -l output -d 'Write to a new file instead of stdout' -r -F
complete -c canopy -n "__fish_canopy_using_subcommand collect-info" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand options" -l json -d 'Print JSON, for programs'
complete -c canopy -n "__fish_canopy_using_subcommand options" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand bench" -l only -d 'Measure only these tables' -r -f -a "goals\t'Every workload, with its goal'
meta\t'Metadata over 1, 8 and 32 branches, with goals'
walks\t'Programs that walk a known tree'
programs\t'Programs that make, change and remove files'
concurrency\t'Metadata with 1, 2, 8 and 32 threads'
dd\t'A large file written and read on each data path'
reads\t'Sequential and random reads, with and without passthrough'
blocks\t'Blocks of 1 MiB against blocks of 512 bytes'
jobs\t'1 to 32 writers, with a file each or one file for all'
survive\t'What the option survive costs'"
complete -c canopy -n "__fish_canopy_using_subcommand bench" -l dir -d 'Make the branches here instead of in memory' -r -F
complete -c canopy -n "__fish_canopy_using_subcommand bench" -l branch -d 'Use a new directory in each of these as branches' -r -F
complete -c canopy -n "__fish_canopy_using_subcommand bench" -l rounds -d 'Number of rounds in which each side is measured' -r
complete -c canopy -n "__fish_canopy_using_subcommand bench" -l pools -d 'Branches in meta and programs [default: 1,8,32]' -r
complete -c canopy -n "__fish_canopy_using_subcommand bench" -l clients -d 'Bound to their processor, free, or both' -r -f -a "bound\t'On one processor'
free\t'Anywhere, as programs run'"
complete -c canopy -n "__fish_canopy_using_subcommand bench" -s o -d 'Options for every pool, as for canopy mount' -r
complete -c canopy -n "__fish_canopy_using_subcommand bench" -l against -d 'Measure this mount too, or what COMMAND mounts' -r
complete -c canopy -n "__fish_canopy_using_subcommand bench" -l json -d 'Write all figures to FILE, as JSON' -r -F
complete -c canopy -n "__fish_canopy_using_subcommand bench" -l plot -d 'Draw the ratios to FILE, as SVG' -r -F
complete -c canopy -n "__fish_canopy_using_subcommand bench" -l quick -d 'Small and short, to see whether it works at all'
complete -c canopy -n "__fish_canopy_using_subcommand bench" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c canopy -n "__fish_canopy_using_subcommand init" -s b -l branch -d 'A branch; repeat it [default: each data disk]' -r -F
complete -c canopy -n "__fish_canopy_using_subcommand init" -s m -l mountpoint -d 'Where the pool appears [default: /mnt/NAME]' -r -F
complete -c canopy -n "__fish_canopy_using_subcommand init" -l way -d 'New files go: spread, most-free, together or fill' -r -f -a "spread\t''
most-free\t''
together\t''
fill\t''"
complete -c canopy -n "__fish_canopy_using_subcommand init" -l boot -d 'Mounted at boot by: fstab, unit or nothing' -r -f -a "fstab\t''
unit\t''
nothing\t''"
complete -c canopy -n "__fish_canopy_using_subcommand init" -l fstab-file -d 'The file for --boot fstab' -r -F
complete -c canopy -n "__fish_canopy_using_subcommand init" -l unit-dir -d 'The directory for --boot unit' -r -F
complete -c canopy -n "__fish_canopy_using_subcommand init" -s y -l yes -d 'Do not ask; use defaults for whatever is not given'
complete -c canopy -n "__fish_canopy_using_subcommand init" -l undo -d 'Take back what init wrote for this pool'
complete -c canopy -n "__fish_canopy_using_subcommand init" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand migrate" -l write -d 'Write FILE.canopy beside each file'
complete -c canopy -n "__fish_canopy_using_subcommand migrate" -l switch -d 'Put FILE.canopy in the place of FILE'
complete -c canopy -n "__fish_canopy_using_subcommand migrate" -l undo -d 'Take back the lines that --switch has changed'
complete -c canopy -n "__fish_canopy_using_subcommand migrate" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand doctor" -l fstab-file -d 'The fstab to look at' -r -F
complete -c canopy -n "__fish_canopy_using_subcommand doctor" -l json -d 'Print JSON, for programs'
complete -c canopy -n "__fish_canopy_using_subcommand doctor" -l fix -d 'Do what it advises, one by one, after a question'
complete -c canopy -n "__fish_canopy_using_subcommand doctor" -s y -l yes -d 'Do not ask'
complete -c canopy -n "__fish_canopy_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand which" -l json -d 'Print JSON'
complete -c canopy -n "__fish_canopy_using_subcommand which" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand ls" -s R -l recursive -d 'List what is below it as well'
complete -c canopy -n "__fish_canopy_using_subcommand ls" -l json -d 'Print JSON'
complete -c canopy -n "__fish_canopy_using_subcommand ls" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand du" -s d -l depth -d 'How many levels to show below it' -r
complete -c canopy -n "__fish_canopy_using_subcommand du" -l apparent-size -d 'Count sizes instead of what files take on their disks'
complete -c canopy -n "__fish_canopy_using_subcommand du" -l json -d 'Print JSON'
complete -c canopy -n "__fish_canopy_using_subcommand du" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand move" -l to -d 'The branch' -r -F
complete -c canopy -n "__fish_canopy_using_subcommand move" -l bwlimit -d 'At most this many bytes a second (20M)' -r
complete -c canopy -n "__fish_canopy_using_subcommand move" -l include -d 'Only files that match (by name; by path with a slash)' -r
complete -c canopy -n "__fish_canopy_using_subcommand move" -l exclude -d 'No files that match' -r
complete -c canopy -n "__fish_canopy_using_subcommand move" -l min-size -d 'Only files of at least this size (such as 100M)' -r
complete -c canopy -n "__fish_canopy_using_subcommand move" -l max-size -d 'Only files of at most this size' -r
complete -c canopy -n "__fish_canopy_using_subcommand move" -l older -d 'Only files not changed for so long (such as 2d)' -r
complete -c canopy -n "__fish_canopy_using_subcommand move" -l newer -d 'Only files changed since then' -r
complete -c canopy -n "__fish_canopy_using_subcommand move" -l owner -d 'Only files of this user (a name or number)' -r
complete -c canopy -n "__fish_canopy_using_subcommand move" -l against-rules -d 'Also where rules and tiers do not want files'
complete -c canopy -n "__fish_canopy_using_subcommand move" -s n -l dry-run -d 'Print what would be done, and do nothing'
complete -c canopy -n "__fish_canopy_using_subcommand move" -l lossy -d 'Also to filesystems that lose owners or modes, as NTFS'
complete -c canopy -n "__fish_canopy_using_subcommand move" -l json -d 'Print JSON: the plan (dry run) or what became of it'
complete -c canopy -n "__fish_canopy_using_subcommand move" -s q -l quiet -d 'Print nothing but errors'
complete -c canopy -n "__fish_canopy_using_subcommand move" -l eager -d 'Normal I/O priority (default: yield to others)'
complete -c canopy -n "__fish_canopy_using_subcommand move" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand balance" -l to -d 'How far used shares may differ afterwards' -r
complete -c canopy -n "__fish_canopy_using_subcommand balance" -l bwlimit -d 'At most this many bytes a second (20M)' -r
complete -c canopy -n "__fish_canopy_using_subcommand balance" -l include -d 'Only files that match (by name; by path with a slash)' -r
complete -c canopy -n "__fish_canopy_using_subcommand balance" -l exclude -d 'No files that match' -r
complete -c canopy -n "__fish_canopy_using_subcommand balance" -l min-size -d 'Only files of at least this size (such as 100M)' -r
complete -c canopy -n "__fish_canopy_using_subcommand balance" -l max-size -d 'Only files of at most this size' -r
complete -c canopy -n "__fish_canopy_using_subcommand balance" -l older -d 'Only files not changed for so long (such as 2d)' -r
complete -c canopy -n "__fish_canopy_using_subcommand balance" -l newer -d 'Only files changed since then' -r
complete -c canopy -n "__fish_canopy_using_subcommand balance" -l owner -d 'Only files of this user (a name or number)' -r
complete -c canopy -n "__fish_canopy_using_subcommand balance" -l against-rules -d 'Also where rules and tiers do not want files'
complete -c canopy -n "__fish_canopy_using_subcommand balance" -s n -l dry-run -d 'Print what would be done, and do nothing'
complete -c canopy -n "__fish_canopy_using_subcommand balance" -l lossy -d 'Also to filesystems that lose owners or modes, as NTFS'
complete -c canopy -n "__fish_canopy_using_subcommand balance" -l json -d 'Print JSON: the plan (dry run) or what became of it'
complete -c canopy -n "__fish_canopy_using_subcommand balance" -s q -l quiet -d 'Print nothing but errors'
complete -c canopy -n "__fish_canopy_using_subcommand balance" -l eager -d 'Normal I/O priority (default: yield to others)'
complete -c canopy -n "__fish_canopy_using_subcommand balance" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand drain" -l bwlimit -d 'At most this many bytes a second (20M)' -r
complete -c canopy -n "__fish_canopy_using_subcommand drain" -l include -d 'Only files that match (by name; by path with a slash)' -r
complete -c canopy -n "__fish_canopy_using_subcommand drain" -l exclude -d 'No files that match' -r
complete -c canopy -n "__fish_canopy_using_subcommand drain" -l min-size -d 'Only files of at least this size (such as 100M)' -r
complete -c canopy -n "__fish_canopy_using_subcommand drain" -l max-size -d 'Only files of at most this size' -r
complete -c canopy -n "__fish_canopy_using_subcommand drain" -l older -d 'Only files not changed for so long (such as 2d)' -r
complete -c canopy -n "__fish_canopy_using_subcommand drain" -l newer -d 'Only files changed since then' -r
complete -c canopy -n "__fish_canopy_using_subcommand drain" -l owner -d 'Only files of this user (a name or number)' -r
complete -c canopy -n "__fish_canopy_using_subcommand drain" -l remove -d 'Then remove it from the pool and its file, unasked'
complete -c canopy -n "__fish_canopy_using_subcommand drain" -l against-rules -d 'Also where rules and tiers do not want files'
complete -c canopy -n "__fish_canopy_using_subcommand drain" -s n -l dry-run -d 'Print what would be done, and do nothing'
complete -c canopy -n "__fish_canopy_using_subcommand drain" -l lossy -d 'Also to filesystems that lose owners or modes, as NTFS'
complete -c canopy -n "__fish_canopy_using_subcommand drain" -l json -d 'Print JSON: the plan (dry run) or what became of it'
complete -c canopy -n "__fish_canopy_using_subcommand drain" -s q -l quiet -d 'Print nothing but errors'
complete -c canopy -n "__fish_canopy_using_subcommand drain" -l eager -d 'Normal I/O priority (default: yield to others)'
complete -c canopy -n "__fish_canopy_using_subcommand drain" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand consolidate" -l to -d 'The branch, instead of the one that holds most of it' -r -F
complete -c canopy -n "__fish_canopy_using_subcommand consolidate" -l bwlimit -d 'At most this many bytes a second (20M)' -r
complete -c canopy -n "__fish_canopy_using_subcommand consolidate" -l include -d 'Only files that match (by name; by path with a slash)' -r
complete -c canopy -n "__fish_canopy_using_subcommand consolidate" -l exclude -d 'No files that match' -r
complete -c canopy -n "__fish_canopy_using_subcommand consolidate" -l min-size -d 'Only files of at least this size (such as 100M)' -r
complete -c canopy -n "__fish_canopy_using_subcommand consolidate" -l max-size -d 'Only files of at most this size' -r
complete -c canopy -n "__fish_canopy_using_subcommand consolidate" -l older -d 'Only files not changed for so long (such as 2d)' -r
complete -c canopy -n "__fish_canopy_using_subcommand consolidate" -l newer -d 'Only files changed since then' -r
complete -c canopy -n "__fish_canopy_using_subcommand consolidate" -l owner -d 'Only files of this user (a name or number)' -r
complete -c canopy -n "__fish_canopy_using_subcommand consolidate" -l against-rules -d 'Also where rules and tiers do not want files'
complete -c canopy -n "__fish_canopy_using_subcommand consolidate" -s n -l dry-run -d 'Print what would be done, and do nothing'
complete -c canopy -n "__fish_canopy_using_subcommand consolidate" -l lossy -d 'Also to filesystems that lose owners or modes, as NTFS'
complete -c canopy -n "__fish_canopy_using_subcommand consolidate" -l json -d 'Print JSON: the plan (dry run) or what became of it'
complete -c canopy -n "__fish_canopy_using_subcommand consolidate" -s q -l quiet -d 'Print nothing but errors'
complete -c canopy -n "__fish_canopy_using_subcommand consolidate" -l eager -d 'Normal I/O priority (default: yield to others)'
complete -c canopy -n "__fish_canopy_using_subcommand consolidate" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand tier" -l bwlimit -d 'At most this many bytes a second (20M)' -r
complete -c canopy -n "__fish_canopy_using_subcommand tier" -l include -d 'Only files that match (by name; by path with a slash)' -r
complete -c canopy -n "__fish_canopy_using_subcommand tier" -l exclude -d 'No files that match' -r
complete -c canopy -n "__fish_canopy_using_subcommand tier" -l min-size -d 'Only files of at least this size (such as 100M)' -r
complete -c canopy -n "__fish_canopy_using_subcommand tier" -l max-size -d 'Only files of at most this size' -r
complete -c canopy -n "__fish_canopy_using_subcommand tier" -l older -d 'Only files not changed for so long (such as 2d)' -r
complete -c canopy -n "__fish_canopy_using_subcommand tier" -l newer -d 'Only files changed since then' -r
complete -c canopy -n "__fish_canopy_using_subcommand tier" -l owner -d 'Only files of this user (a name or number)' -r
complete -c canopy -n "__fish_canopy_using_subcommand tier" -l once -d 'Do what is due now, and end'
complete -c canopy -n "__fish_canopy_using_subcommand tier" -l now -d 'Whatever time of the day the tiers name'
complete -c canopy -n "__fish_canopy_using_subcommand tier" -s n -l dry-run -d 'Print what would be done, and do nothing'
complete -c canopy -n "__fish_canopy_using_subcommand tier" -l lossy -d 'Also to filesystems that lose owners or modes, as NTFS'
complete -c canopy -n "__fish_canopy_using_subcommand tier" -l json -d 'Print JSON: the plan (dry run) or what became of it'
complete -c canopy -n "__fish_canopy_using_subcommand tier" -s q -l quiet -d 'Print nothing but errors'
complete -c canopy -n "__fish_canopy_using_subcommand tier" -l eager -d 'Normal I/O priority (default: yield to others)'
complete -c canopy -n "__fish_canopy_using_subcommand tier" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand dup" -l copies -d 'On how many disks each file is to be' -r
complete -c canopy -n "__fish_canopy_using_subcommand dup" -l bwlimit -d 'At most this many bytes a second (20M)' -r
complete -c canopy -n "__fish_canopy_using_subcommand dup" -l include -d 'Only files that match (by name; by path with a slash)' -r
complete -c canopy -n "__fish_canopy_using_subcommand dup" -l exclude -d 'No files that match' -r
complete -c canopy -n "__fish_canopy_using_subcommand dup" -l min-size -d 'Only files of at least this size (such as 100M)' -r
complete -c canopy -n "__fish_canopy_using_subcommand dup" -l max-size -d 'Only files of at most this size' -r
complete -c canopy -n "__fish_canopy_using_subcommand dup" -l older -d 'Only files not changed for so long (such as 2d)' -r
complete -c canopy -n "__fish_canopy_using_subcommand dup" -l newer -d 'Only files changed since then' -r
complete -c canopy -n "__fish_canopy_using_subcommand dup" -l owner -d 'Only files of this user (a name or number)' -r
complete -c canopy -n "__fish_canopy_using_subcommand dup" -s n -l dry-run -d 'Print what would be done, and do nothing'
complete -c canopy -n "__fish_canopy_using_subcommand dup" -l lossy -d 'Also to filesystems that lose owners or modes, as NTFS'
complete -c canopy -n "__fish_canopy_using_subcommand dup" -l json -d 'Print JSON: the plan (dry run) or what became of it'
complete -c canopy -n "__fish_canopy_using_subcommand dup" -s q -l quiet -d 'Print nothing but errors'
complete -c canopy -n "__fish_canopy_using_subcommand dup" -l eager -d 'Normal I/O priority (default: yield to others)'
complete -c canopy -n "__fish_canopy_using_subcommand dup" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand dedup" -l keep -d 'first, newest, oldest, largest, emptiest or a branch' -r -f -a "first\t''
newest\t''
oldest\t''
largest\t''
emptiest\t''"
complete -c canopy -n "__fish_canopy_using_subcommand dedup" -l copies -d 'How many copies of a file stay' -r
complete -c canopy -n "__fish_canopy_using_subcommand dedup" -l link -d 'Equal files on a branch share space: reflink or hard' -r -f -a "reflink\t'Each stays a file of its own, and a write to it takes new blocks'
hard\t'They become one file with several names'"
complete -c canopy -n "__fish_canopy_using_subcommand dedup" -l bwlimit -d 'At most this many bytes a second (20M)' -r
complete -c canopy -n "__fish_canopy_using_subcommand dedup" -l include -d 'Only files that match (by name; by path with a slash)' -r
complete -c canopy -n "__fish_canopy_using_subcommand dedup" -l exclude -d 'No files that match' -r
complete -c canopy -n "__fish_canopy_using_subcommand dedup" -l min-size -d 'Only files of at least this size (such as 100M)' -r
complete -c canopy -n "__fish_canopy_using_subcommand dedup" -l max-size -d 'Only files of at most this size' -r
complete -c canopy -n "__fish_canopy_using_subcommand dedup" -l older -d 'Only files not changed for so long (such as 2d)' -r
complete -c canopy -n "__fish_canopy_using_subcommand dedup" -l newer -d 'Only files changed since then' -r
complete -c canopy -n "__fish_canopy_using_subcommand dedup" -l owner -d 'Only files of this user (a name or number)' -r
complete -c canopy -n "__fish_canopy_using_subcommand dedup" -l differing -d 'Remove copies that differ, too; needs --keep'
complete -c canopy -n "__fish_canopy_using_subcommand dedup" -l write -d 'Do it; without this, only print'
complete -c canopy -n "__fish_canopy_using_subcommand dedup" -l json -d 'Print JSON: the plan (dry run) or what became of it'
complete -c canopy -n "__fish_canopy_using_subcommand dedup" -s q -l quiet -d 'Print nothing but errors'
complete -c canopy -n "__fish_canopy_using_subcommand dedup" -l eager -d 'Normal I/O priority (default: yield to others)'
complete -c canopy -n "__fish_canopy_using_subcommand dedup" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c canopy -n "__fish_canopy_using_subcommand verify" -l bwlimit -d 'At most this many bytes a second (20M)' -r
complete -c canopy -n "__fish_canopy_using_subcommand verify" -l include -d 'Only files that match (by name; by path with a slash)' -r
complete -c canopy -n "__fish_canopy_using_subcommand verify" -l exclude -d 'No files that match' -r
complete -c canopy -n "__fish_canopy_using_subcommand verify" -l min-size -d 'Only files of at least this size (such as 100M)' -r
complete -c canopy -n "__fish_canopy_using_subcommand verify" -l max-size -d 'Only files of at most this size' -r
complete -c canopy -n "__fish_canopy_using_subcommand verify" -l older -d 'Only files not changed for so long (such as 2d)' -r
complete -c canopy -n "__fish_canopy_using_subcommand verify" -l newer -d 'Only files changed since then' -r
complete -c canopy -n "__fish_canopy_using_subcommand verify" -l owner -d 'Only files of this user (a name or number)' -r
complete -c canopy -n "__fish_canopy_using_subcommand verify" -l write -d 'Store checksums and mend; without this, only read'
complete -c canopy -n "__fish_canopy_using_subcommand verify" -l json -d 'Print JSON: the plan (dry run) or what became of it'
complete -c canopy -n "__fish_canopy_using_subcommand verify" -s q -l quiet -d 'Print nothing but errors'
complete -c canopy -n "__fish_canopy_using_subcommand verify" -l eager -d 'Normal I/O priority (default: yield to others)'
complete -c canopy -n "__fish_canopy_using_subcommand verify" -s h -l help -d 'Print help'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "mount" -d 'Mount directories as one pool'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "umount" -d 'Unmount a pool'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "sync" -d 'Write everything in a pool to its disks'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "upgrade" -d 'Serve a pool with the program that is installed now'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "get" -d 'Show one value of a running pool, or all as KEY=VALUE'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "set" -d 'Change an option of a running pool'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "add" -d 'Add branches to a running pool'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "remove" -d 'Remove branches from a running pool'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "replace" -d 'Replace a branch of a running pool by another directory'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "mode" -d 'Change the mode of a branch: RW, RO or NC'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "list" -d 'Show the options of a running pool as a table'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "status" -d 'Show pools, their branches, and what is wrong with them'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "top" -d 'Show live what a pool and its branches do'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "metrics" -d 'Print what pools do, in the OpenMetrics format'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "explain" -d 'Show which branch an operation would use now, and why'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "fsck" -d 'Find and repair files whose copies differ in owner, mode or size'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "collect-info" -d 'Gather information for a bug report'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "options" -d 'List the options for -o with their defaults and values'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "bench" -d 'Measure how fast a pool is, compared with its own branch'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "init" -d 'Set up a new pool, step by step'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "migrate" -d 'Turn what mergerfs is configured with into Canopy\'s'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "doctor" -d 'Find what is wrong on this machine, and how to fix it'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "which" -d 'Show which branches hold a file, and how its copies differ'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "ls" -d 'List a directory with the branches that hold each entry'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "du" -d 'Show how much of a directory tree is on each branch'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "move" -d 'Move files of a pool to a branch'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "balance" -d 'Even out how full the branches of a pool are'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "drain" -d 'Empty a branch, so that its disk can be taken out'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "consolidate" -d 'Bring the files of a directory together on one branch'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "tier" -d 'Move files between tiers, and apply rules: places and copies'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "dup" -d 'Make copies of files on other disks of a pool'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "dedup" -d 'Remove surplus copies of files that other branches hold too'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "verify" -d 'Check files against their checksums, store new ones, and repair'
complete -c canopy -n "__fish_canopy_using_subcommand help; and not __fish_seen_subcommand_from mount umount sync upgrade get set add remove replace mode list status top metrics explain fsck collect-info options bench init migrate doctor which ls du move balance drain consolidate tier dup dedup verify help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'

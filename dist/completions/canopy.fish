# Completions of canopy for fish. The program knows its commands, options, policies, pools and branches.

function __canopy_complete
    set -l words (commandline -opc)
    set -l last (commandline -ct)
    test -n "$last"; or set last ''
    for line in ($words[1] complete -- $words[2..-1] $last 2>/dev/null)
        switch $line
            case :files
                __fish_complete_path $last
            case :directories
                __fish_complete_directories $last
            case '*'
                printf '%s\n' $line
        end
    end
end

complete -c canopy -f -a '(__canopy_complete)'

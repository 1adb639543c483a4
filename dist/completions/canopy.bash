# Completions of canopy for bash. The program knows its commands, options, policies, pools and branches.

_canopy() {
    local words=() word glued= before found kinds line i
    # bash splits words at = and :, the program does not.
    for ((i = 1; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if ((${#words[@]})) && { [[ $word == [=:]* ]] || [[ $glued ]]; }; then
            words[${#words[@]} - 1]+=$word
        else
            words+=("$word")
        fi
        [[ $word == *[=:] ]] && glued=1 || glued=
    done
    word=${COMP_WORDS[COMP_CWORD]}
    before=${words[${#words[@]} - 1]}
    [[ $word == [=:] ]] || before=${before%"$word"}
    COMPREPLY=() kinds=
    while IFS= read -r line; do
        case $line in
        :*) kinds+=$line ;;
        *) found=${line%%$'\t'*} && COMPREPLY+=("${found#"$before"}") ;;
        esac
    done < <("${COMP_WORDS[0]}" complete -- "${words[@]}" 2>/dev/null)
    [[ $word == [=:] ]] && word=
    case $kinds in
    *:files*) i=-f ;;
    *:directories*) i=-d ;;
    *) i= ;;
    esac
    if [[ $i ]]; then
        compopt -o filenames 2>/dev/null
        while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen "$i" -- "$word")
    elif ((${#COMPREPLY[@]})); then
        # A value follows an equals sign.
        [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
        for i in "${!COMPREPLY[@]}"; do printf -v "COMPREPLY[$i]" %q "${COMPREPLY[i]}"; done
    fi
}

complete -F _canopy canopy

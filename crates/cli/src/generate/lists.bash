
# Mount options are a list with commas in one word, which bash divides at '=' and ':'.
_ubtrfs_with_lists() {
    local line=${COMP_LINE:0:COMP_POINT} word before head last candidate
    word=${line##*[[:space:]]}
    before=" ${line%"$word"}"
    before=${before%"${before##*[![:space:]]}"}
    case "$before" in
        *[[:space:]]mount*[[:space:]]-o | *[[:space:]]mount*[[:space:]]--options | *[[:space:]]shell*[[:space:]]-o) ;;
        *)
            _ubtrfs "$@"
            return
            ;;
    esac
    head=${word%"${word##*,}"}
    last=${word##*,}
    COMPREPLY=()
    for candidate in @options@; do
        if [[ $candidate == "$last"* ]]; then
            candidate=$head$candidate
            # What bash replaces is only what follows the last '=' or ':'.
            COMPREPLY+=("${candidate#"${word%"$2"}"}")
        fi
    done
    # Another option may follow.
    compopt -o nospace 2>/dev/null
}

complete -F _ubtrfs_with_lists -o bashdefault -o default ubtrfs


# Mount options, and features of a new volume, are a list with commas in one word, which bash divides
# at '=' and ':'.
_ubtrfs_with_lists() {
    local line=${COMP_LINE:0:COMP_POINT} word before head last candidate candidates
    word=${line##*[[:space:]]}
    before=" ${line%"$word"}"
    before=${before%"${before##*[![:space:]]}"}
    case "$before" in
        *[[:space:]]mount*[[:space:]]-o | *[[:space:]]mount*[[:space:]]--options | *[[:space:]]shell*[[:space:]]-o)
            candidates='@options@'
            ;;
        *[[:space:]]mkfs*[[:space:]]-O | *[[:space:]]mkfs*[[:space:]]--features)
            candidates='@features@'
            ;;
        *)
            _ubtrfs "$@"
            return
            ;;
    esac
    last=${word##*[,^]}
    head=${word%"$last"}
    COMPREPLY=()
    for candidate in $candidates; do
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

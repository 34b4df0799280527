#!/usr/bin/env bash
# Options of recipe scripts. A script lists them as `name=default  # help` between the lines
# `# options` and `# end of options`, and sources this file:
#   parse_options SCRIPT "$@"        set them; an unknown option or a bad value ends the script
#   parse_known_options SCRIPT "$@"  the same, but put unknown options into the array other_options
#   require_whole_numbers NAME ...   end the script if an option is not a number
#   refuse_white_space NAME ...      end the script if an option has white space
#   refuse_commas NAME ...           end the script if an option has a comma
#   record_option EXPDIR NAME VALUE  end the script if EXPDIR has experiments with another value
# `-` and `_` are equal in option names; `--name value` and `--name=value` both work.
# Functions that read or set options by name begin the names of their locals with `parse_`: a local
# variable with the name of an option would hide it.

option_lines() {
    sed -n '/^# options$/,/^# end of options$/p' "$1"
}

option_names() {
    option_lines "$1" | sed -n 's/^\([a-z_][a-z0-9_]*\)=.*/\1/p'
}

print_options() {
    echo "Usage: $(basename "$1") [--name value] ..."
    sed -n 's/^# usage: //p' "$1"
    option_lines "$1" | sed -e '1d' -e '$d' -e 's/^\([a-z_][a-z0-9_]*=\)/  --\1/'
}

refuse_option() { # SCRIPT NAME: print similar options, or all of them
    local near
    near=$(option_names "$1" | python3 -c '
import difflib, sys
name, known = sys.argv[1], sys.stdin.read().split()
near = difflib.get_close_matches(name, known, 5, 0.6)
near += [other for other in known if name in other and other not in near]
print(" ".join("--" + other for other in near or known))' "$2")
    echo "$(basename "$1"): unknown option --$2; did you mean: ${near} (all: --help)" >&2
    exit 2
}

set_option() { # SCRIPT NAME VALUE
    case ${!2} in
    true | false)
        if [ "$3" != true ] && [ "$3" != false ]; then
            echo "$(basename "$1"): --$2 '$3': allowed are true and false" >&2
            exit 2
        fi
        ;;
    esac
    printf -v "$2" %s "$3"
}

# The caller reads this array.
# shellcheck disable=SC2034
parse_known_options() {
    local parse_script=$1 parse_names parse_name parse_flag
    shift
    parse_names=" $(option_names "${parse_script}" | tr '\n' ' ') "
    other_options=()
    while [ $# -gt 0 ]; do
        case $1 in
        -h | --help)
            print_options "${parse_script}"
            exit 0
            ;;
        --*=*)
            parse_flag=${1%%=*}
            set -- "${parse_flag}" "${1#*=}" "${@:2}"
            ;;
        --?*) ;;
        *)
            echo "$(basename "${parse_script}"): unexpected '$1'; options are --name value" >&2
            exit 2
            ;;
        esac
        parse_name=${1#--}
        parse_name=${parse_name//-/_}
        if [ $# -lt 2 ]; then
            echo "$(basename "${parse_script}"): --${parse_name}: a value is missing" >&2
            exit 2
        fi
        if [[ ${parse_names} == *" ${parse_name} "* ]]; then
            set_option "${parse_script}" "${parse_name}" "$2"
        else
            other_options+=("--${parse_name}" "$2")
        fi
        shift 2
    done
}

parse_options() {
    parse_known_options "$@"
    if [ ${#other_options[@]} -gt 0 ]; then
        refuse_option "$1" "${other_options[0]#--}"
    fi
}

require_whole_numbers() { # NAME ...
    local parse_name
    for parse_name in "$@"; do
        if ! [[ ${!parse_name} =~ ^[0-9]+$ ]]; then
            echo "--${parse_name} '${!parse_name}': a whole number is needed" >&2
            exit 2
        fi
    done
}

refuse_white_space() { # NAME ...: of options that become words of a list
    local parse_name
    for parse_name in "$@"; do
        if [[ ${!parse_name} == *[[:space:]]* ]]; then
            echo "--${parse_name} '${!parse_name}': white space is not allowed; give another name," \
                "or for an existing folder a link to it (ln -s)" >&2
            exit 2
        fi
    done
}

refuse_commas() { # NAME ...: of options that become the FILE of ESPnet's FILE,NAME,TYPE
    local parse_name
    for parse_name in "$@"; do
        if [[ ${!parse_name} == *,* ]]; then
            echo "--${parse_name} '${!parse_name}': a comma is not allowed; give another name," \
                "or for an existing folder a link to it (ln -s)" >&2
            exit 2
        fi
    done
}

record_option() { # EXPDIR NAME VALUE
    local recorded=$1/$2
    mkdir -p "$1"
    [ -f "${recorded}" ] || echo "$3" > "${recorded}"
    if [ "$(cat "${recorded}")" != "$3" ]; then
        echo "$(basename "$0"): error: --$2 $3: $1 has $(cat "${recorded}"); give" \
            "another --expdir, or remove $1" >&2
        exit 2
    fi
}

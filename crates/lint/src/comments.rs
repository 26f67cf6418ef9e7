//! The locations of comments in a Rust source.

use std::str::FromStr;

use proc_macro2::{Span, TokenStream, TokenTree};

/// Returns for each line the column at which its comment begins (`//`, `///` or `//!`), if it has
/// one. If the source can't be read, returns the line of the error instead.
///
/// Everything that the compiler's tokens don't cover is blank or a comment, so `//` in a string
/// isn't one. Comments between `/*` and `*/` are not supported.
pub fn columns(source: &str) -> Result<Vec<Option<usize>>, usize> {
    let lines: Vec<&str> = source.lines().collect();
    let tokens = TokenStream::from_str(source).map_err(|error| error.span().start().line)?;
    let mut covered = vec![0; lines.len()];
    cover(tokens, &lines, &mut covered);
    let comment = |(line, covered): (&&str, usize)| {
        let rest: String = line.chars().skip(covered).collect();
        rest.find("//").map(|bytes| covered + rest[..bytes].chars().count())
    };
    Ok(lines.iter().zip(covered).map(comment).collect())
}

/// Notes for each line the column up to which tokens cover it.
fn cover(tokens: TokenStream, lines: &[&str], covered: &mut [usize]) {
    for token in tokens {
        let begins = token.span().start();
        if lines[begins.line - 1].chars().skip(begins.column).take(2).eq("//".chars()) {
            continue; // a comment of documentation, which is an attribute to the compiler
        }
        match token {
            TokenTree::Group(group) => {
                cover_span(group.span_open(), covered);
                cover(group.stream(), lines, covered);
                cover_span(group.span_close(), covered);
            }
            other => cover_span(other.span(), covered),
        }
    }
}

/// Covers the lines of a token; all but the last of several to their ends.
fn cover_span(span: Span, covered: &mut [usize]) {
    let (begins, ends) = (span.start(), span.end());
    covered[begins.line - 1..ends.line - 1].fill(usize::MAX);
    covered[ends.line - 1] = covered[ends.line - 1].max(ends.column);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_characters_are_no_comments() {
        let source =
            "//! head\nlet a = \"http://x\"; // é\n/// doc\nlet b = ('/', r#\"\n// inside\n\"#); // after\nc / d;\n";
        let found = columns(source).expect("it is Rust");
        assert_eq!(found, [Some(0), Some(20), Some(0), None, None, Some(5), None]);
    }

    #[test]
    fn syntax_errors_are_reported_with_their_line() {
        assert_eq!(columns("fn a() {}\nfn b( {\n"), Err(2));
    }
}

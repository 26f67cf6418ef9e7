#include "parse.h"
#include "token.h"

static int sum(struct tokens *tokens, long *value);

static int factor(struct tokens *tokens, long *value)
{
	if (tokens->kind == 'n') {
		*value = tokens->number;
	} else if (tokens->kind == '(') {
		next_token(tokens);
		if (!sum(tokens, value) || tokens->kind != ')')
			return 0;
	} else {
		return 0;
	}
	next_token(tokens);
	return 1;
}

static int product(struct tokens *tokens, long *value)
{
	long right;

	if (!factor(tokens, value))
		return 0;
	while (tokens->kind == '*') {
		next_token(tokens);
		if (!factor(tokens, &right))
			return 0;
		*value *= right;
	}
	return 1;
}

static int sum(struct tokens *tokens, long *value)
{
	long right;

	if (!product(tokens, value))
		return 0;
	while (tokens->kind == '+' || tokens->kind == '-') {
		int sign = tokens->kind == '+' ? 1 : -1;
		next_token(tokens);
		if (!product(tokens, &right))
			return 0;
		*value += sign * right;
	}
	return 1;
}

int evaluate(const char *text, long *value)
{
	struct tokens tokens = { .at = text };

	next_token(&tokens);
	return sum(&tokens, value) && tokens.kind == 0;
}

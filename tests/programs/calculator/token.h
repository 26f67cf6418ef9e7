#ifndef TOKEN_H
#define TOKEN_H

struct tokens {
	const char *at;
	char kind; /* 'n' for a number, 0 at the end, otherwise the character itself */
	long number;
};

void next_token(struct tokens *tokens);

#endif

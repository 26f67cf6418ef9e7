#include "token.h"

#include <ctype.h>
#include <stdlib.h>

void next_token(struct tokens *tokens)
{
	while (isspace((unsigned char)*tokens->at))
		tokens->at++;
	if (isdigit((unsigned char)*tokens->at)) {
		char *end;
		tokens->number = strtol(tokens->at, &end, 10);
		tokens->kind = 'n';
		tokens->at = end;
	} else {
		tokens->kind = *tokens->at;
		if (tokens->kind)
			tokens->at++;
	}
}

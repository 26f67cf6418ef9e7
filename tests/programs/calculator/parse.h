#ifndef PARSE_H
#define PARSE_H

/* Stores the value of a sum such as "2 * (3 + 4)"; returns 0 when it is none. */
int evaluate(const char *text, long *value);

#endif

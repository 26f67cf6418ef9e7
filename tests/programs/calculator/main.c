#include "parse.h"

#include <stdio.h>

int main(int argc, char **argv)
{
	long value;

	if (argc != 2 || !evaluate(argv[1], &value)) {
		fprintf(stderr, "usage: calculator SUM\n");
		return 1;
	}
	printf("%ld\n", value);
	return 0;
}

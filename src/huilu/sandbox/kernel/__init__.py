"""What the kernel gives: system calls, filters, rule sets, control groups. Knows no policy of the sandbox."""

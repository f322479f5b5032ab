"""What runs inside a zygote and its jails. Standard library only: `bundle` joins these modules into one script."""

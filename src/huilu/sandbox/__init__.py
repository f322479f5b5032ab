"""Running untrusted code: a supervisor process, jails made of namespaces, and the client that asks. Linux; no torch."""

"""TLS of the listeners and between brokers: certificates from PEM files, contexts made of them, and handshakes."""

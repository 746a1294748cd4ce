"""TLS: the certificate and its reloads, the principals of clients, and handshakes before sessions."""

"""Consumer instances (REST Proxy v2): consumers that the store holds for clients over HTTP, beside their groups."""

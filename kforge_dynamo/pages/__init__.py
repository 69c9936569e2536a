"""Pages for people: one HTML file each, which needs no server, no network and no script."""

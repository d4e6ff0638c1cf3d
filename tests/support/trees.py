"""The contents of a folder, to see that nothing changed; no test lives here."""


def read_tree(root):
    """Return bytes and time of every file by its path, without locks: who took one changes it."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and "lock" not in path.name)
    return {
        path.relative_to(root).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in files
    }

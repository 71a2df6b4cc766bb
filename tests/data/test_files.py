import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from growthring.data import DataError
from growthring.data.files import OfficialFile, check_md5, fetch, write_folder

CONTENT = bytes(range(256)) * 5000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[:-1000] if self.path == "/short" else CONTENT)

    def log_message(self, *args):
        pass


@pytest.fixture
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_download_is_whole(site: str, tmp_path: Path):
    path = fetch(OfficialFile("x.bin", f"{site}/whole", MD5), tmp_path / "a" / "b")
    assert path == tmp_path / "a" / "b" / "x.bin"
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("page", "md5", "message"),
    [
        ("whole", "0" * 32, f"sent has md5 {MD5}, the official file has {'0' * 32}. The download"),
        ("short", MD5, f"the official file has {MD5}. The download broke off"),
        (
            "missing",
            MD5,
            "HTTP Error 404: Not Found). Get the file by other means and put it there.",
        ),
    ],
)
def test_a_failed_download_leaves_nothing(site: str, page, md5, message, tmp_path: Path):
    with pytest.raises(DataError) as error:
        fetch(OfficialFile("x.bin", f"{site}/{page}", md5), tmp_path)
    assert str(error.value).startswith(str(tmp_path / "x.bin"))
    assert message in str(error.value) and f"{site}/{page}" in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_download_keeps_what_was_there(site: str, tmp_path: Path):
    (tmp_path / "x.bin").write_bytes(b"old")
    with pytest.raises(DataError):
        fetch(OfficialFile("x.bin", f"{site}/short", MD5), tmp_path)
    assert (tmp_path / "x.bin").read_bytes() == b"old"


def test_nobody_answers(tmp_path: Path):
    with pytest.raises(DataError, match=r"could not be downloaded from http://127\.0\.0\.1:9/x"):
        fetch(OfficialFile("x.bin", "http://127.0.0.1:9/x", MD5), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_md5_of_what_cannot_be_read(tmp_path: Path):
    with pytest.raises(DataError, match="none: cannot be read"):
        check_md5(tmp_path / "none", OfficialFile("none", "https://nowhere.invalid", MD5))


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path):
    folder = tmp_path / "folder"
    write_folder(folder, {"a": b"1", "no/such/folder": b"2"})
    assert list(tmp_path.iterdir()) == []
    write_folder(folder, {"a": b"1", "b": b"2"})
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {"a": b"1", "b": b"2"}
    write_folder(folder, {"a": b"other"})  # another process was faster
    assert (folder / "a").read_bytes() == b"1"
    assert list(tmp_path.iterdir()) == [folder]

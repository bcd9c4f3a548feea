"""Downloads against a real server on this machine: resumed, refused, checked, impossible."""

import hashlib
import io
import re
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from spaceform.data import CATALOG, DataError, get, load
from spaceform.data.download import CHUNK, Remote, bar, fetch, unpack

BODY = np.random.default_rng(0).bytes(1_000_000)
MD5 = f"md5:{hashlib.md5(BODY, usedforsecurity=False).hexdigest()}"


@dataclass
class Server:
    """Files to serve, and how badly."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: list[int] = field(default_factory=list)
    """Bytes to send before each of the next connections is cut."""
    ranges: bool = True
    asked: list[str | None] = field(default_factory=list)
    """The Range header of each request."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append(wanted)
            body = state.files.get(self.path.lstrip("/"))
            if body is None:
                self.send_error(404)
                return
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and state.ranges else 0
            if start >= len(body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            limit = state.cut_after.pop(0) if state.cut_after else len(body)
            self.wfile.write(body[start : start + limit])
            self.wfile.flush()
            if start + limit < len(body):
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    state.url = f"http://127.0.0.1:{http.server_port}"
    yield state
    http.shutdown()
    http.server_close()


def nobody() -> str:
    """An address at which no one listens."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{s.getsockname()[1]}"


def test_a_file_arrives_whole_with_progress(server, tmp_path):
    server.files["x.bin"] = BODY
    seen = []
    path = fetch(Remote("x.bin", MD5, (f"{server.url}/x.bin",)), tmp_path / "new", lambda *a: seen.append(a))
    assert path.read_bytes() == BODY
    assert seen[-1] == ("x.bin", len(BODY), len(BODY))
    assert [p.name for p in path.parent.iterdir()] == ["x.bin"]
    fetch(Remote("x.bin", MD5, (f"{server.url}/x.bin",)), tmp_path / "new")
    assert server.asked == [None]  # what is there and right is not fetched again


def test_a_cut_connection_is_taken_up_where_it_broke(server, tmp_path):
    server.files["x.bin"] = BODY
    server.cut_after = [300_000, 200_000]
    path = fetch(Remote("x.bin", MD5, (f"{server.url}/x.bin",)), tmp_path, wait=0.0)
    assert path.read_bytes() == BODY
    starts = [0 if wanted is None else int(wanted[6:-1]) for wanted in server.asked]
    assert starts[0] == 0
    assert 300_000 - CHUNK < starts[1] <= 300_000
    assert starts[1] + 200_000 - CHUNK < starts[2] <= starts[1] + 200_000
    assert len(starts) == 3


def test_a_download_goes_on_in_another_process(server, tmp_path):
    server.files["x.bin"] = BODY
    (tmp_path / "x.bin.part").write_bytes(BODY[:400_000])
    assert fetch(Remote("x.bin", MD5, (f"{server.url}/x.bin",)), tmp_path).read_bytes() == BODY
    assert server.asked == ["bytes=400000-"]


@pytest.mark.parametrize("kept", [BODY, BODY + b"more"])
def test_a_part_that_is_whole_or_too_long(server, tmp_path, kept):
    server.files["x.bin"] = BODY
    (tmp_path / "x.bin.part").write_bytes(kept)
    assert fetch(Remote("x.bin", MD5, (f"{server.url}/x.bin",)), tmp_path).read_bytes() == BODY


def test_a_server_without_ranges_sends_all_of_it_again(server, tmp_path):
    server.files["x.bin"] = BODY
    server.ranges = False
    (tmp_path / "x.bin.part").write_bytes(BODY[:400_000])
    assert fetch(Remote("x.bin", MD5, (f"{server.url}/x.bin",)), tmp_path).read_bytes() == BODY


def test_a_wrong_checksum_is_refused_and_nothing_is_left(server, tmp_path):
    server.files["x.bin"] = BODY[:-1] + b"\0"
    with pytest.raises(
        DataError, match=r"cannot download x\.bin \(.*the file there has another checksum than md5:"
    ):
        fetch(Remote("x.bin", MD5, (f"{server.url}/x.bin",)), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_next_mirror_is_tried(server, tmp_path):
    server.files |= {"wrong/x.bin": b"<html>sorry</html>", "right/x.bin": BODY}
    urls = (
        f"{nobody()}/x.bin",
        f"{server.url}/missing/x.bin",
        f"{server.url}/wrong/x.bin",
        f"{server.url}/right/x.bin",
    )
    assert fetch(Remote("x.bin", MD5, urls), tmp_path, wait=0.0).read_bytes() == BODY


def test_each_failure_is_told(server, tmp_path):
    urls = (f"{nobody()}/x.bin", f"{server.url}/x.bin")
    with pytest.raises(
        DataError, match=r"x\.bin: .*[Cc]onnection refused.*; .*x\.bin: the server answered 404"
    ):
        fetch(Remote("x.bin", MD5, urls), tmp_path, wait=0.0)


def test_without_a_network_the_message_says_what_to_put_where(data_folder, monkeypatch, capfd):
    address = nobody()
    entry = CATALOG["mnist"]
    remotes = tuple(replace(r, urls=(f"{address}/{r.name}",)) for r in entry.remotes)
    monkeypatch.setitem(CATALOG, "mnist", replace(entry, remotes=remotes))
    with pytest.raises(DataError) as caught:
        load("mnist")
    message = str(caught.value)
    assert message.startswith("cannot download train-images-idx3-ubyte.gz (")
    assert message.endswith(
        "put train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, "
        f"t10k-labels-idx1-ubyte.gz into {data_folder / 'mnist'}."
    )
    assert "\n" not in message
    assert capfd.readouterr().out == ""


def serve_mnist(server, made, monkeypatch):
    remotes = []
    for remote in CATALOG["mnist"].remotes:
        server.files[remote.name] = (made / remote.name).read_bytes()
        md5 = hashlib.md5(server.files[remote.name], usedforsecurity=False).hexdigest()
        remotes.append(Remote(remote.name, f"md5:{md5}", (f"{server.url}/{remote.name}",)))
    monkeypatch.setitem(CATALOG, "mnist", replace(CATALOG["mnist"], remotes=tuple(remotes)))


def test_mnist_is_downloaded_and_loaded(server, data_folder, write_mnist, monkeypatch, capfd):
    serve_mnist(server, write_mnist(data_folder.parent / "made"), monkeypatch)
    assert len(load("mnist")) == 40
    assert "downloading train-images-idx3-ubyte.gz" in capfd.readouterr().err
    requests = len(server.asked)
    assert get("mnist") == data_folder / "mnist"
    assert len(server.asked) == requests


def test_photos_are_unpacked_after_the_download(server, data_folder, monkeypatch, write_photo):
    photo = write_photo(data_folder.parent / "a.jpg").read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as z:
        for name, first in (("Ebay_train.txt", 1), ("Ebay_test.txt", 4)):
            rows = "".join(f"{c} {c} 1 chair_final/{c}.JPG\n" for c in range(first, first + 3))
            z.writestr(f"Stanford_Online_Products/{name}", f"image_id class_id super_class_id path\n{rows}")
        for c in range(1, 7):
            z.writestr(f"Stanford_Online_Products/chair_final/{c}.JPG", photo)
    server.files["sop.zip"] = buffer.getvalue()
    md5 = hashlib.md5(buffer.getvalue(), usedforsecurity=False).hexdigest()
    remote = Remote("Stanford_Online_Products.zip", f"md5:{md5}", (f"{server.url}/sop.zip",))
    monkeypatch.setitem(CATALOG, "sop", replace(CATALOG["sop"], remotes=(remote,)))
    assert len(load("sop")) == 6


def test_a_read_only_folder_sends_downloads_to_the_cache(server, data_folder, write_mnist, monkeypatch):
    serve_mnist(server, write_mnist(data_folder.parent / "made"), monkeypatch)
    monkeypatch.setenv("SPACEFORM_DATA", "/proc/nowhere")
    assert get("mnist") == data_folder.parent / "cache" / "spaceform" / "mnist"


def test_an_archive_is_unpacked_whole_or_not_at_all(tmp_path):
    archive = tmp_path / "a.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in ("one", "two"):
            info = tarfile.TarInfo(f"folder/{name}")
            info.size = 100_000
            tar.addfile(info, io.BytesIO(np.random.default_rng(1).bytes(100_000)))
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) * 3 // 4])
    with pytest.raises(DataError, match=r"a\.tgz cannot be unpacked"):
        unpack(archive, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.tgz"]
    archive.write_bytes(whole)
    unpack(archive, tmp_path)
    assert sorted(p.name for p in (tmp_path / "folder").iterdir()) == ["one", "two"]


def test_an_archive_cannot_write_outside_its_folder(tmp_path):
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        info = tarfile.TarInfo("../outside")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"bad"))
    (tmp_path / "inner").mkdir()
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(archive, tmp_path / "inner")
    assert not (tmp_path / "outside").exists()


def test_the_bar_prints_a_line_a_file_where_there_is_no_terminal(capfd):
    with bar() as progress:
        progress("x.bin", 10, 100)
        progress("x.bin", 100, 100)
        progress("y.bin", 5, None)
    assert capfd.readouterr().err == "downloading x.bin (100 bytes)\ndownloading y.bin\n"


def test_a_path_that_is_a_file_is_a_clear_error(server, tmp_path):
    server.files["x.bin"] = BODY
    blocked = Path(tmp_path / "file")
    blocked.write_text("in the way")
    with pytest.raises(DataError, match=r"file cannot be written to"):
        fetch(Remote("x.bin", MD5, (f"{server.url}/x.bin",)), blocked)


def test_photos_are_put_beside_annotations_that_lie_elsewhere(server, data_folder, monkeypatch, write_photo):
    annos = data_folder / "cars196" / "cars_annos.mat"
    annos.parent.mkdir()
    table = np.empty((1, 4), dtype=[("relative_im_path", "O"), ("class", "O"), ("test", "O")])
    for i in range(4):
        table[0, i] = (f"car_ims/{i}.jpg", i // 2 + 1, i % 2)
    savemat(annos, {"annotations": table, "class_names": np.array(["Audi", "BMW"], dtype=object)})
    archive = data_folder.parent / "car_ims.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for i in range(4):
            tar.add(write_photo(data_folder.parent / f"{i}.jpg"), f"car_ims/{i}.jpg")
    server.files["car_ims.tgz"] = archive.read_bytes()
    remotes = tuple(
        Remote(
            p.name,
            f"md5:{hashlib.md5(p.read_bytes(), usedforsecurity=False).hexdigest()}",
            (f"{server.url}/{p.name}",),
        )
        for p in (annos, archive)
    )
    monkeypatch.setitem(CATALOG, "cars196", replace(CATALOG["cars196"], remotes=remotes))
    monkeypatch.setattr(
        "os.access", lambda path, _: not str(path).startswith(str(data_folder))
    )  # as if read-only
    assert get("cars196") == data_folder.parent / "cache" / "spaceform" / "cars196"
    assert len(load("cars196")) == 4
    assert server.asked == [None]

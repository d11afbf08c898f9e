import sys
import tempfile
import uuid
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
if HERE not in sys.path:  # workers import the steps of these tests by name
    sys.path.append(HERE)

from sample_steps import Reverse, ReverseConfig  # noqa: E402

from toolkit.pipeline.config import StoreConfig  # noqa: E402
from toolkit.pipeline.objects import ObjectStore  # noqa: E402
from toolkit.pipeline.step import Partition  # noqa: E402


@pytest.fixture
def make_step(tmp_path):
    """A step with a ledger of its own; `make_step.attempts(step)` reads it."""

    def make(**settings):
        ledger = tmp_path / f"ledger-{uuid.uuid4().hex[:8]}"
        ledger.mkdir()
        return Reverse(ReverseConfig(ledger=str(ledger), **settings))

    def attempts(step):
        """(partition, time in ns, process, device) of every attempt that began."""
        return [p.name.split() for p in sorted(Path(step.config.ledger).iterdir())]

    make.attempts = attempts
    return make


@pytest.fixture
def make_partitions(tmp_path):
    """Partitions of two small objects each, below a place that may be a URL."""

    def make(count, place=None, bad=(), store=None):
        store, place = store or ObjectStore(), place or str(tmp_path / "lake")
        partitions = []
        for number in range(count):
            contents = [f"{number} first {'x' * number}", f"{number} second"]
            if number in bad:
                contents[1] += " bad"
            refs = [
                store.put(f"{place}/{number}-{part}.bin", content.encode())
                for part, content in enumerate(contents)
            ]
            partitions.append(Partition(f"p{number:03d}", tuple(refs), {"hours": 0.5}))
        return partitions

    return make


KEY, SECRET = "testing", "very-secret-testing"


@pytest.fixture(scope="session", autouse=True)
def credentials():
    """Credentials of the tests' S3 servers, before Spark starts: its executors inherit them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.delenv("AWS_PROFILE", raising=False)
        yield


@pytest.fixture(scope="session", params=["moto", "ceph"])
def s3_server(request):
    """An S3 server behind the proxy, as long as the tests run: moto's, and Ceph's if installed."""
    pytest.importorskip("s3fs")
    from faulty_s3 import FaultyS3

    server, port = _ceph() if request.param == "ceph" else _moto()
    proxy = FaultyS3(port)
    proxy.server = server
    yield proxy
    proxy.shutdown()
    server.stop()


def _moto():
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    return server, server.get_host_and_port()[1]


def _ceph():
    from ceph_server import PROGRAMS, CephServer, installed

    if not installed():
        pytest.skip(f"Ceph is not installed: {', '.join(PROGRAMS)}")
    for tries in range(3, 0, -1):
        try:  # its store ends at once now and then, without a word
            server = CephServer(Path(tempfile.mkdtemp(prefix="ceph-")), KEY, SECRET)
        except RuntimeError:
            if tries == 1:
                raise
        else:
            break
    return server, server.port


@pytest.fixture
def s3(s3_server):
    """The proxy without faults, an empty bucket `base`, and a `store` that speaks to it."""
    import s3fs
    from faulty_s3 import Faults

    s3_server.faults = Faults()
    s3_server.base = f"s3://lake-{uuid.uuid4().hex[:8]}"
    s3fs.S3FileSystem(endpoint_url=s3_server.url).mkdir(s3_server.base)
    s3_server.log.clear()
    s3_server.config = StoreConfig(
        {"endpoint_url": s3_server.url}, tries=10, first_wait=0.02, timeout=10.0
    )
    s3_server.store = ObjectStore(s3_server.config)
    return s3_server

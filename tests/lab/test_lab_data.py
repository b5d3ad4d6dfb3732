import gzip

import numpy as np
import pytest
from lab import data


def test_missing_data_is_an_error_that_says_where_to_get_it(tmp_path):
    with pytest.raises(data.MissingData) as error:
        data.find(str(tmp_path))
    for word in (str(tmp_path), "dataset-fashion-mnist", data.SOURCE, "--data"):
        assert word in str(error.value)


def test_files_may_be_packed_or_plain(tmp_path):
    images, labels = np.arange(2 * 784, dtype=np.uint8).reshape(2, 28, 28), np.array([3, 7], np.uint8)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(bytes(16) + images.tobytes())
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(8) + labels.tobytes()))
    for stem in ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        (tmp_path / stem).write_bytes(b"")
    got_images, got_labels = data.load("train", str(tmp_path))
    assert (got_images == images).all()
    assert (got_labels == labels).all()


def test_the_real_data_has_ten_even_classes(fashion_mnist):
    images, labels = data.load("train")
    assert images.shape == (60000, 28, 28)
    assert np.bincount(labels).tolist() == [6000] * 10


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_share_each_epoch_without_overlap(world):
    shards = [data.Shards(100, 8, rank, world, 1) for rank in range(world)]
    steps = shards[0].steps_per_epoch
    epochs = []
    for epoch in range(2):
        seen = np.concatenate([s.indices(epoch * steps + step) for step in range(steps) for s in shards])
        assert len(set(seen.tolist())) == len(seen) == steps * world * 8
        epochs.append(seen.tolist())
    assert epochs[0] != epochs[1]


def test_the_order_of_samples_is_the_same_in_every_run():
    assert (data.Shards(100, 8, 1, 2, 1).indices(9) == data.Shards(100, 8, 1, 2, 1).indices(9)).all()


def test_a_seed_chooses_the_samples_of_pytorchs_workers(monkeypatch):
    pytest.importorskip("torch")
    from lab import trainers

    class Samples:
        samples = 60000

        def batch(self, index):
            return index, index

    monkeypatch.setattr(trainers, "open_dataset", lambda *_: Samples())

    def first_samples(seed):
        setting = {"kind": "compute", "model": "mlp", "data": None, "batch": 32, "rank": 1, "world": 2, "seed": seed}
        setting |= {"layers": None, "learning_rate": 0.1, "passes": 1}
        return trainers.Trainer(setting, lambda _: None).next_batch()[0].tolist()

    once, again, other = (first_samples(seed) for seed in (1, 1, 2))
    assert once == again == data.Shards(60000, 32, 1, 2, 1).indices(0).tolist()
    assert once != other


def test_a_seed_chooses_the_samples_of_other_frameworks_workers(monkeypatch):
    from lab import framework_worker

    class Trainer:
        def __init__(self, _setting):
            pass

        def train_step(self, _images, labels):
            return labels.tolist()

    monkeypatch.setattr(data, "load", lambda *_: (np.zeros((1000, 28, 28), np.uint8), np.arange(1000)))
    monkeypatch.setattr(framework_worker.importlib, "import_module", lambda _: type("", (), {"MXNetTrainer": Trainer}))

    def first_samples(seed):
        setting = {"framework": "mxnet", "data": None, "batch": 32, "rank": 1, "world": 2, "seed": seed}
        return framework_worker.Worker(setting, lambda _: None)._train_step()

    once, again, other = (first_samples(seed) for seed in (1, 1, 2))
    assert once == again and once != other


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="more than"):
        data.Shards(100, 64, 0, 2, 1)

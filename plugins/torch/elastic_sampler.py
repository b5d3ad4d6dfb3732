"""ElasticSampler: the samples of this rank, which an epoch that begins anew does not give a second time.

sampler = hvd.elastic.ElasticSampler(dataset)
loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)
for place, batch in enumerate(loader):
    ...
    state.sampler.record_batch(place, 32)            # before state.commit()
state.sampler.set_epoch(epoch + 1)                   # at the end of an epoch
"""

import math
import random

from deft.world import rank, size

import torch


class ElasticSampler(torch.utils.data.Sampler):
    """All ranks have equally many samples: some samples come twice if their number is no multiple of the ranks'."""

    def __init__(self, dataset, shuffle=True, seed=0):
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_indices = set()
        self.reset()

    def set_epoch(self, epoch):
        """Begins an epoch in which nothing is processed yet. Call it at the end of an epoch, not at its begin."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx, batch_size):
        """The batch of this number, since iteration began, is processed."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices):
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx, batch_size):
        first = batch_idx * batch_size
        return self._indices[first : first + batch_size]

    def state_dict(self):
        return {"epoch": self.epoch, "processed_indices": sorted(self.processed_indices)}

    def load_state_dict(self, state_dict):
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def reset(self):
        """The next iteration gives this rank's share of what is not processed."""
        left = [index for index in range(len(self.dataset)) if index not in self.processed_indices]
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(left)
        each = math.ceil(len(left) / size())
        repeated = [left[place % len(left)] for place in range(each * size())]
        self._indices = repeated[rank() :: size()]

    def __iter__(self):
        return iter(self._indices)

    def __len__(self):
        return len(self._indices)

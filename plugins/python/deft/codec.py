"""How one gradient is encoded for the network, if not as the option `compression` says.

    DistributedOptimizer(optimizer, compression=deft.Codec("int8"))
    DistributedOptimizer(optimizer, compression=lambda name, param: deft.Codec("int4") if "embed" in name else ...)

The daemons encode, so the training process has no more to do than before. What an encoding leaves out is sent later.
"""


class Codec:
    """A codec as users write it: "int8", "topk/ratio=0.01", or "none" for gradients that are never rounded."""

    def __init__(self, text):
        if not isinstance(text, str) or not text:
            raise TypeError(f"a codec is named by a text such as int8, not by {text!r}")
        self.text = text

    def __repr__(self):
        return f"deft.Codec({self.text!r})"

    def __eq__(self, other):
        return isinstance(other, Codec) and self.text == other.text

    def __hash__(self):
        return hash(self.text)


class Codecs:
    """The codecs that every plugin's Compression offers, beside Horovod's none and fp16."""

    exact = Codec("none")  # never rounded, whatever the option says
    bf16 = Codec("bf16")
    int8 = Codec("int8")
    int4 = Codec("int4")
    int2 = Codec("int2")

    @staticmethod
    def codec(text):
        """Any codec of docs/compression.md, for instance codec("topk/ratio=0.01")."""
        return Codec(text)


def choose_compression(compression, name, tensor):
    """What `compression`, a value or a function of name and tensor, says for this tensor: (compressor or None, codec).

    A compressor is a class with `wire_dtype`, as Compression.fp16. A codec is a text, empty if none was chosen.
    """
    is_a_choice = isinstance(compression, (Codec, type)) or hasattr(compression, "wire_dtype")
    if not is_a_choice and callable(compression):
        compression = compression(name, tensor)
    if isinstance(compression, Codec):
        return None, compression.text
    if not hasattr(compression, "wire_dtype"):
        raise TypeError(
            f"compression for {name} is {compression!r}; choose Compression.none, Compression.fp16, "
            "Compression.int8 or another codec, or a function of name and tensor that gives one of these"
        )
    return compression, getattr(compression, "codec", "")


def require_compressor(compression, what):
    """Raises unless `compression` works without daemons that encode: they encode gradients alone."""
    if not hasattr(compression, "wire_dtype"):
        raise ValueError(
            f"{what} does not take {compression!r}: choose Compression.none or Compression.fp16; codecs are for "
            "gradients of a DistributedOptimizer"
        )

"""One promise of a page, with the tests that prove it."""


class Promise:
    """A passage of a page, and the tests that prove it: ``file::test``, from the folder of the tests."""

    def __init__(self, sentence: str, *proofs: str) -> None:
        self.sentence, self.proofs = sentence, proofs

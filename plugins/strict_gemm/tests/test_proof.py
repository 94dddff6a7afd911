from encore_strict_gemm.proof import batches, prove, row_counts


def first_difference(a: list[float], b: list[float]) -> int | None:
    return next((row for row, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)


def run_invariant(first: int, count: int) -> list[float]:
    return [float(row) for row in range(first, first + count)]


def test_every_row_count_that_decoding_uses_is_checked() -> None:
    assert list(row_counts(700))[:512] == list(range(1, 513))


def test_counts_above_the_dense_range_straddle_the_tile_edges_and_end_at_the_limit() -> None:
    assert [count for count in row_counts(1000) if count > 512] == [513, 767, 768, 769, 1000]


def test_a_small_limit_is_never_exceeded() -> None:
    assert max(first + count for first, count in batches(3)) == 3


def test_rows_that_never_change_are_proven() -> None:
    proof = prove(run_invariant, first_difference, 1024)
    assert proof.holds
    assert proof.batches == len(list(batches(1024)))


def test_a_row_that_changes_with_the_batch_size_is_named() -> None:
    def run(first: int, count: int) -> list[float]:
        return [row + (0.5 if count == 300 and row == 17 else 0.0) for row in run_invariant(first, count)]

    fork = prove(run, first_difference, 1024).fork
    assert fork is not None
    assert (fork.row, fork.first, fork.count) == (17, 0, 300)
    assert str(fork) == "row 17 computed among 300 rows differs from itself in the largest batch"


def test_a_row_that_changes_only_when_alone_is_found() -> None:
    def run(first: int, count: int) -> list[float]:
        return [row + (0.5 if count == 1 and row == 64 else 0.0) for row in run_invariant(first, count)]

    fork = prove(run, first_difference, 128).fork
    assert fork is not None
    assert str(fork) == "row 64 computed alone differs from itself in the largest batch"


def test_a_row_that_changes_with_its_place_in_the_batch_is_found() -> None:
    def run(first: int, count: int) -> list[float]:
        return [row + (0.5 if first % 2 and count > 1 else 0.0) for row in run_invariant(first, count)]

    assert not prove(run, first_difference, 64).holds

"""Test that the cache trusts only folders that no other user could change."""

import os
import stat
import types
from pathlib import Path

import pytest

from optgen.runtime.cache import files
from optgen.runtime.cache.files import why_changeable, why_untrusted

OTHER = 12345


def folder_stat(mode: int, user: int | None = None, group: int = OTHER) -> os.stat_result:
    """Return the stat result of a folder, which belongs to this user by default."""
    owner = os.geteuid() if user is None else user
    return os.stat_result((stat.S_IFDIR | mode, 1, 1, 1, owner, group, 0, 0, 0, 0))


def test_a_folder_must_belong_to_this_user_or_to_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not why_changeable(folder_stat(0o755))
    assert not why_changeable(folder_stat(0o755, user=0))
    assert "belongs to user 12345" in why_changeable(folder_stat(0o700, user=OTHER))
    assert "belongs to user 12345" in why_changeable(folder_stat(0o700, user=OTHER), ancestor=True)


@pytest.mark.parametrize("mode", [0o775, 0o777, 0o757])
def test_a_folder_that_others_may_write_to_is_changeable(mode: int) -> None:
    """The sticky bit makes an ancestor safe, but not the folder itself."""
    writer = "group" if mode == 0o775 else "everybody"
    assert writer in why_changeable(folder_stat(mode))
    assert writer in why_changeable(folder_stat(mode), ancestor=True)
    assert writer in why_changeable(folder_stat(mode | stat.S_ISVTX))
    assert not why_changeable(folder_stat(mode | stat.S_ISVTX), ancestor=True)


def test_a_private_group_may_write_to_an_ancestor(monkeypatch: pytest.MonkeyPatch) -> None:
    """On systems with a umask of 002, each user has a private group, which may write."""
    grp, pwd = pytest.importorskip("grp"), pytest.importorskip("pwd")
    members: list[str] = []
    user = types.SimpleNamespace(pw_name="ada", pw_gid=7)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: user)
    monkeypatch.setattr(
        grp, "getgrgid", lambda gid: types.SimpleNamespace(gr_name="ada", gr_mem=members)
    )
    monkeypatch.setattr(files, "_is_private", files._is_private.__wrapped__)

    assert not why_changeable(folder_stat(0o775, group=7), ancestor=True)
    assert "group" in why_changeable(folder_stat(0o775, group=7))
    assert "group" in why_changeable(folder_stat(0o775, group=8), ancestor=True)
    members.append("eve")
    assert "group" in why_changeable(folder_stat(0o775, group=7), ancestor=True)


def test_every_ancestor_of_a_folder_is_checked(tmp_path: Path) -> None:
    folder = tmp_path / "open" / "inner" / "cache"
    folder.mkdir(parents=True)
    assert not why_untrusted(folder)

    (tmp_path / "open").chmod(0o777)
    assert why_untrusted(folder) == f"{tmp_path}/open may be written to by everybody"
    assert why_untrusted(folder.parent / ".." / "inner" / "cache")
    (tmp_path / "open").chmod(0o1777)
    assert not why_untrusted(folder)


def test_the_folder_of_a_link_and_its_target_are_both_checked(tmp_path: Path) -> None:
    (tmp_path / "real" / "cache").mkdir(parents=True)
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "link").symlink_to(tmp_path / "real")
    (tmp_path / "relative").symlink_to("open/link")
    by_link = tmp_path / "relative" / "cache"
    assert not why_untrusted(by_link)

    (tmp_path / "open").chmod(0o777)
    assert why_untrusted(by_link) == f"{tmp_path}/open may be written to by everybody"
    (tmp_path / "open").chmod(0o755)
    (tmp_path / "real").chmod(0o777)
    assert why_untrusted(by_link) == f"{tmp_path}/real may be written to by everybody"


def test_a_link_is_as_trusted_as_its_target(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert not why_untrusted(tmp_path / "link")

    (tmp_path / "real").chmod(0o1777)
    assert why_untrusted(tmp_path / "link")


def test_links_in_a_circle_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(OSError, match="too many links"):
        why_untrusted(tmp_path / "link")


def test_one_warning_names_the_folder_and_the_variable_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTGEN_CACHE_DIR", str(tmp_path / "open" / "cache"))
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)

    with pytest.warns(
        UserWarning, match=rf"{tmp_path}/open may be.*set OPTGEN_CACHE_DIR"
    ) as warned:
        used_folders = [*files.folders(), *files.folders()]

    assert len(warned) == 1
    assert len(set(used_folders)) == 1
    assert stat.S_IMODE(used_folders[0].stat().st_mode) == 0o700


def test_a_temporary_folder_that_others_may_replace_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTGEN_CACHE_DIR", "/proc/optgen")
    monkeypatch.setattr(files, "_temporary_folder", lambda pid: tmp_path / "open" / "mine")
    (tmp_path / "open" / "mine").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)

    with pytest.warns(UserWarning, match="set TMPDIR to"):
        assert not list(files.folders())


def test_folders_are_made_for_this_user_only(tmp_path: Path) -> None:
    old_umask = os.umask(0)
    try:
        files.make(tmp_path / "a" / "b")
    finally:
        os.umask(old_umask)

    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    assert not why_untrusted(tmp_path / "a" / "b")

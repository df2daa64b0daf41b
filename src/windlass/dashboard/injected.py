"""The dependencies that routes receive, by parameter name."""

from __future__ import annotations

from litestar.di import NamedDependency

from windlass.dashboard.figures import Figures
from windlass.dashboard.guard import Guard
from windlass.dashboard.lake import LakeFigures
from windlass.dashboard.live import Tickers
from windlass.dashboard.static import Static
from windlass.dashboard.store_view import StoreView

TheStoreView = NamedDependency[StoreView]
TheFigures = NamedDependency[Figures]
TheGuard = NamedDependency[Guard]
TheLake = NamedDependency[LakeFigures | None]
TheTickers = NamedDependency[Tickers]
TheStatic = NamedDependency[Static]

// The parts of Apache ECharts that the charts use; the rest is left out of the bundle.
import {CustomChart, LineChart, ScatterChart} from "echarts/charts";
import {AxisPointerComponent, DataZoomSliderComponent, GridComponent, LegendComponent, TooltipComponent,} from "echarts/components";
import {init, use} from "echarts/core";
import {SVGRenderer} from "echarts/renderers";

use([
  AxisPointerComponent,
  CustomChart,
  DataZoomSliderComponent,
  GridComponent,
  LegendComponent,
  LineChart,
  ScatterChart,
  SVGRenderer,
  TooltipComponent,
]);

export {init};

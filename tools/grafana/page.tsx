// Copyright (c) 2026, trtllm.fleet contributors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later
//
// Draw a dashboard with the components of Grafana. The panels of Grafana are in no package of npm: what is here
// in their place chooses the component of a panel's type and passes it the panel's options.
import {
  applyFieldOverrides,
  createTheme,
  DataFrame,
  dateTime,
  FieldConfigSource,
  FieldType,
  getFieldDisplayValues,
  identityOverrideProcessor,
  Registry,
  standardTransformers,
  standardTransformersRegistry,
  ThemeContext,
  TimeRange,
  toDataFrame,
  transformDataFrame,
} from '@grafana/data';
import { BigValue, GlobalStyles, PanelChrome, Table, TimeSeries } from '@grafana/ui';
import { createRoot } from 'react-dom/client';
import { lastValueFrom } from 'rxjs';

type Labels = Record<string, string>;
type Sample = [seconds: number, value: string];
type Series = { metric: Labels; value?: Sample; values?: Sample[] };
type Target = { refId: string; format?: string; legendFormat: string; answer: Series[] };
type Place = { x: number; y: number; w: number; h: number };
type Panel = {
  id: number;
  type: 'row' | 'stat' | 'table' | 'timeseries';
  title: string;
  gridPos: Place;
  fieldConfig: FieldConfigSource;
  options: any;
  targets: Target[];
  transformations?: any[];
};

// Grid of Grafana: 24 columns, rows of 30 pixels, 8 pixels between them.
const WIDTH = 1200;
const COLUMN = WIDTH / 24;
const ROW = 38;
const SPACE = 8;

const theme = createTheme({ colors: { mode: 'light' } });
const { panels, from, to } = (window as any).dashboard as { panels: Panel[]; from: number; to: number };
const [begin, end] = [dateTime(from * 1000), dateTime(to * 1000)];
const timeRange: TimeRange = { from: begin, to: end, raw: { from: begin, to: end } };
const same = (text: string) => text;
const milliseconds = (sample: Sample) => sample[0] * 1000;

function frames({ refId, format, legendFormat, answer }: Target): DataFrame[] {
  if (format !== 'table') {
    return answer.map(({ metric, values = [] }) => {
      const displayNameFromDS = legendFormat.replace(/{{(\w+)}}/g, (_, label) => metric[label] ?? '');
      return toDataFrame({
        refId,
        fields: [
          { name: 'Time', type: FieldType.time, values: values.map(milliseconds) },
          { name: 'Value', type: FieldType.number, values: values.map(([, value]) => Number(value)), config: { displayNameFromDS } },
        ],
      });
    });
  }
  const labels = [...new Set(answer.flatMap(({ metric }) => Object.keys(metric)))].sort();
  const column = (label: string) => ({
    name: label,
    type: FieldType.string,
    values: answer.map(({ metric }) => metric[label] ?? ''),
  });
  const samples = answer.map(({ value }) => value as Sample);
  const fields = [
    { name: 'Time', type: FieldType.time, values: samples.map(milliseconds) },
    ...labels.map(column),
    { name: 'Value', type: FieldType.number, values: samples.map(([, value]) => Number(value)) },
  ];
  return answer.length ? [toDataFrame({ refId, fields })] : [];
}

// The options of fields that Grafana's panels would register.
function registry({ defaults }: FieldConfigSource): any {
  const option = (path: string, isCustom: boolean) => ({
    id: isCustom ? `custom.${path}` : path,
    path,
    name: path,
    isCustom,
    process: identityOverrideProcessor,
    shouldApply: () => true,
  });
  const standard = Object.keys(defaults).filter((key) => key !== 'custom');
  const custom = Object.keys(defaults.custom ?? {});
  return new Registry(() => [...standard.map((key) => option(key, false)), ...custom.map((key) => option(key, true))] as any[]);
}

async function data({ targets, transformations = [], fieldConfig }: Panel): Promise<DataFrame[]> {
  const found = await lastValueFrom(transformDataFrame(transformations, targets.flatMap(frames)));
  const fieldConfigRegistry = registry(fieldConfig);
  return applyFieldOverrides({ data: found, fieldConfig, fieldConfigRegistry, replaceVariables: same, theme, timeZone: 'utc' });
}

type Size = { width: number; height: number };
type Drawn = Size & { panel: Panel; found: DataFrame[] };

function Stat({ panel: { fieldConfig, options }, found, width, height }: Drawn) {
  const { reduceOptions, orientation: _, ...look } = options;
  const values = getFieldDisplayValues({ data: found, fieldConfig, reduceOptions, replaceVariables: same, theme, sparkline: true });
  return (
    <div style={{ display: 'flex' }}>
      {values.map(({ display, sparkline }, place) => (
        <BigValue
          {...look}
          key={place}
          value={display}
          sparkline={sparkline}
          count={values.length}
          theme={theme}
          width={width / values.length}
          height={height}
        />
      ))}
    </div>
  );
}

function Content({ panel, found, width, height }: Drawn) {
  if (!found.length) {
    return <div style={{ display: 'grid', placeItems: 'center', height }}>No data</div>;
  }
  if (panel.type === 'stat') {
    return <Stat panel={panel} found={found} width={width} height={height} />;
  }
  if (panel.type === 'table') {
    return <Table {...panel.options} data={found[0]} width={width} height={height} />;
  }
  return <TimeSeries {...panel.options} frames={found} timeRange={timeRange} timeZone="utc" width={width} height={height} />;
}

function Box({ panel, found }: { panel: Panel; found: DataFrame[] }) {
  const { x, y, w, h } = panel.gridPos;
  const place = { position: 'absolute' as const, left: x * COLUMN + SPACE / 2, top: y * ROW };
  if (panel.type === 'row') {
    return <h6 style={{ ...place, margin: SPACE }}>{panel.title}</h6>;
  }
  return (
    <div style={place}>
      <PanelChrome title={panel.title} width={w * COLUMN - SPACE} height={h * ROW - SPACE}>
        {(width, height) => <Content panel={panel} found={found} width={width} height={height} />}
      </PanelChrome>
    </div>
  );
}

async function draw() {
  const { organizeFieldsTransformer: organize } = standardTransformers;
  standardTransformersRegistry.setInit(() => [{ id: organize.id, name: organize.name, transformation: organize }] as any[]);
  const boxes = await Promise.all(
    panels.map(async (panel) => <Box key={panel.id} panel={panel} found={panel.type === 'row' ? [] : await data(panel)} />)
  );
  const height = ROW * Math.max(...panels.map(({ gridPos: { y, h } }) => y + h));
  createRoot(document.body.appendChild(document.createElement('div'))).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div style={{ position: 'absolute', top: 0, left: 0, width: WIDTH, height }}>{boxes}</div>
    </ThemeContext.Provider>
  );
}

draw();
